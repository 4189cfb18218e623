"""Which chunks are in host memory: what the manager keeps.

``pool`` has their states and every transition between them, with the jobs ``under_way`` and the ``fences`` of
slots whose chunk was forgotten. ``intake`` decides what of an offer gets a place, and who leaves for it: it asks
the ``tracker`` whether a chunk was offered often enough, and a policy, which knows requests by their ``runs``.
``events`` are for who mirrors the cache.
"""
