"""What caches of some size answer of a trace. Knows nothing of routing, of time, or of who asks.

===================== ====================================================================================
**one size**          request by request
``cache``             the loop, with the real manager of each medium (``medium``)
``keys``              the keys of blocks, as connectors make them
``gpu_tier``          the GPU's own prefix cache in front; ``leaving``: one that stores what it gives away
``homes``             files that several servers read
**all sizes at once** only for LRU
``stack``             one pass over the trace in the form of its ``shape``; the result is a ``curve``
**bounds**            that no policy beats
``bounds``            the offline optimum, and a cache that holds everything
**figures**           from what happened
``tally``             hits by tier, ages, a series over time
``beside``            the replay beside the counts of the trace's own server
===================== ====================================================================================
"""
