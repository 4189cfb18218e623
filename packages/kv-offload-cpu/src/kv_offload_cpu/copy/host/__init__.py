"""The engine for KV caches in host memory: ``engine`` has the threads, ``moves`` shares a job among cores.

What moves the bytes is ``memmove``, C's and a call of the kernel, or a compiled loop, ``streaming``.
"""
