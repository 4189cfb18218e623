"""Which chunks are in host memory.

============= =============================================================================================
``pool``      the state of every chunk, and every transition
``under_way`` the jobs on them; ``fences``: slots that such a job still uses, but whose chunk was forgotten
``intake``    which chunks of an offer get a slot, and which are evicted for them
``tracker``   whether a chunk was offered often enough to be stored
``runs``      the object by which a policy knows a request
``events``    the events for mirrors of the cache
============= =============================================================================================
"""
