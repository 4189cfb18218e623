"""The engine for KV caches in host memory.

============= ============================================================
``engine``    the engine: its threads and queues
``moves``     shares the ranges of a job among cores
``memmove``   moves ranges by C's ``memmove``, and by a system call
``streaming`` moves ranges by a compiled loop
============= ============================================================
"""
