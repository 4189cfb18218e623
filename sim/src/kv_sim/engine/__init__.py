"""The engine model: vLLM V1's scheduler and workers, as a connector sees them.

============================ ==============================================================================
``engine``                   what a world drives, whosever it is: a step is scheduled, executed, retired and
                             processed; ``seen``: what it shows of its scheduler and its workers; ``builtin``: the
                             whole of this one
``scheduler``                who computes how many tokens in the next step; who waits is let in by ``admission``
``queues``                   what the scheduler keeps from step to step; ``pause``: who isn't scheduled
``blocks``, ``pool``         who has which GPU blocks; who may get one, and what is still found in it
``tails``                    what is kept of states within a block
``plan``, ``output``         what scheduling collects, and what the connector and the workers are given of it
``worker``                   calls the connector's hooks on a rank, and gives its ``rank_device`` the work
``crossing``                 what both sides send each other, where that goes to another process
``outcome``                  what comes of a step: tokens, ends, failed loads, finished transfers
``request_spec``             what makes a request; ``request``: it, as the engine and a connector see it
``settings``                 what a connector is told about the engine; ``own_folder``: where that is a folder of
                             its own; ``place``: which of a world's engines one is
============================ ==============================================================================

The device itself is in ``kv_sim.memory``. Who judges what the engine and a connector do is in ``kv_sim.checkers``.
"""
