"""The engine model: vLLM V1's scheduler and workers, as a connector sees them.

================ =================================================================================================
``engine``       the interface that a world drives; ``seen``: what it shows of its scheduler and workers
``builtin``      the model itself, which is one such engine
``settings``     the configuration that a connector gets; ``own_folder``: the ``{folder}`` in its settings
``place``        the engine's number, names and folder in its world
``request_spec`` what defines a request; ``request``: the request in the engine; ``story``: its tokens and hashes
``scheduler``    plans a step: how many tokens each request computes; ``admission``: admits waiting requests
``queues``       the scheduler's state from step to step; ``pause``: which requests a paused engine schedules
``blocks``       block tables of requests; ``pool``: free blocks, and the prefix cache
``tails``        states that are kept within a block
``plan``         a step while it is being planned; ``output``: the planned step, as connector and workers get it
``worker``       calls the connector's hooks on one rank; ``rank_device``: what it needs of the device
``outcome``      takes in a step's output: tokens, ends of requests, finished transfers
``failed_loads`` takes in its failed loads
``crossing``     carries metadata and reports between the two sides of a connector, as between processes
================ =================================================================================================

The device itself is in ``kv_sim.memory``; the checkers of engine and connector are in ``kv_sim.checkers``.
"""
