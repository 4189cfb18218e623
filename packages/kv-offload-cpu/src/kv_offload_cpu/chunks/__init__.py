"""Which chunks are in host memory.

============= =============================================================================================
``pool``      the state of every chunk, and every transition
``under_way`` the jobs on them; ``fences``: slots that such a job still uses, and whose chunk was forgotten
``intake``    which chunks of an offer get a place, and which leave for them
``tracker``   whether a chunk was offered often enough to be stored
``runs``      the object by which a policy knows a request
``events``    what a mirror of the cache is told
============= =============================================================================================
"""
