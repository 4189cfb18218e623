"""A testbed for KV connectors: a legal and hostile engine, real bytes, ten invariants, one-line replays.

Start at ``kv_sim.world.World``, or on the command line with ``kv-sim fuzz``. A world drives one connector, action
by action, until an invariant breaks or everything has come to rest.

=================== =======================================================================================
**a world**         what it consists of
``world``           invents a history, or replays one; ``world_state``: all of its state
``config``          how large and how hostile a world is
``subject``         the connector that is driven, and the traits that it claims
``site``            one engine of a world: its connector, and the checkers that judge it
``guard``           every call of a connector goes through it; ``calls``: how many there were
``engine/``         the model of vLLM's engine; ``engines``: this one and others, by name
``memory/``         the bytes, the copies, and the rights of steps and copies to blocks
``checkers/``       judge what happens; ``violation``: what they raise
**a history**       what happens in a world
``actions``         everything that can happen; ``history/``: which action comes next, and what it does
``watching/``       a history as a log, or as a trace for Perfetto
``failures/``       a failing history: shrunk, saved, reported
**who runs worlds** for what purpose
``fuzz``            one seed, one world; ``campaign/``: all connectors, many seeds
``conformance/``    does a connector do what it claims? ``pytest_plugin``: the same from pytest
``growth/``         does its work grow with what it should not depend on?
``zoo/``            connectors with planted bugs: does the testbed find them?
**connectors**      that come with the testbed
``examples/``       small ones to copy from
``offload/``        our offloading connector over the world's copies
``p2p/``            our connector between engines over the world's wire
**traces**          no world, but the requests of a real server
``replay/``         the hit rate and latency that a cache would bring
**the command**     ``kv-sim``
``cli/``            its entry and its small commands; ``console/``: what all commands share
``strict``          reads the JSON that users write; ``whole_file``: writes a file as a whole or not at all
=================== =======================================================================================
"""
