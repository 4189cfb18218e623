"""A testbed for KV connectors: a legal and hostile engine, real bytes, ten invariants, one-line replays.

Start at ``kv_sim.world.World``, or on the command line with ``kv-sim fuzz``.
"""
