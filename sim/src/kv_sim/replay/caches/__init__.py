"""How many blocks of a trace caches of a given size find. Nothing here knows of routing, of time or of reports.

===================== ====================================================================================
**one size**          request by request
``cache``             the loop, with the real manager of each medium (``medium``)
``policies``          the names of eviction policies
``outcome``           the caches that are replayed (``Setup``), and what a replay says of them (``Outcome``)
``keys``              the keys of blocks, as connectors make them
``gpu_tier``          the GPU's own prefix cache in front; ``leaving``: one whose blocks are stored before eviction
``homes``             files that several servers share
**all sizes at once** only for LRU
``stack``             one pass over the trace in the form of its ``shape``; the result is a ``curve``
**bounds**            the most hits that any policy can have
``bounds``            the offline optimum, and a cache that holds everything
**figures**           made of a replay's outcome
``ratios``            hits, and of what they are a part
``tally``             hits by tier, ages, a series over time
``beside``            the replay beside the counts of the trace's own server
===================== ====================================================================================
"""
