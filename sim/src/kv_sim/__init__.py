"""A testbed for KV connectors: a legal and hostile engine, real bytes, ten invariants, one-line replays.

Start at ``kv_sim.world.World``, or on the command line with ``kv-sim fuzz``.

========================== ================================================================================
a world                    ``world`` over ``world_state``, as ``config`` has it; at a ``site`` is one engine of it.
                           Its ``subject`` is a connector behind a ``guard``, which marks its ``calls``; it breaks
                           with a ``violation`` and comes to ``rest``
what it consists of        ``engine/``, the model, or another of ``engines``; ``memory/``; ``checkers/``
what happens in it         ``actions``, drawn and counted in ``history/``; ``watching/`` looks at it
finding failures           ``fuzz``, ``campaign/``, ``conformance/``, ``growth/``; ``pytest_plugin``
what becomes of one        ``failures/``
the command                ``cli/``, and what its commands share: ``command/``; what users write is read by
                           ``strict``, and what they keep is written as a ``whole_file``
to be driven               ``examples/``; ``offload/``, our own media with a world's copies; ``p2p/``, a world as
                           the wire between engines; ``zoo/``, each with a mistake
traces instead of worlds   ``replay/``
========================== ================================================================================
"""
