"""The engine model: vLLM V1's scheduler and workers, as a connector sees them.

================ =================================================================================================
``engine``       the interface that a world drives; ``seen``: what it shows of its scheduler and workers
``builtin``      the model itself, which is one such engine
``settings``     what a connector is told about the engine; ``own_folder``: the ``{folder}`` in its settings
``place``        which engine of its world this is
``request_spec`` what defines a request; ``request``: the request in the engine
``scheduler``    who computes how many tokens in the next step; ``admission``: which waiting requests may begin
``queues``       what the scheduler keeps from step to step; ``pause``: when it schedules nobody, or only some
``blocks``       which request has which GPU blocks; ``pool``: which are free, and what is still found in them
``tails``        states that are kept within a block
``plan``         what is collected while a step is scheduled; ``output``: the same as connector and workers get it
``worker``       calls the connector's hooks on one rank; ``rank_device``: what it asks of the device
``outcome``      what the end of a step changes: tokens, ends, failed loads, finished transfers
``crossing``     what the two sides of a connector send each other, if they are in different processes
================ =================================================================================================

The device itself is in ``kv_sim.memory``. What the engine and the connector do is judged in ``kv_sim.checkers``.
"""
