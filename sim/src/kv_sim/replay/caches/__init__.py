"""What caches of some size answer of a trace. Knows nothing of routing, of time, or of who asks.

======================== ==================================================================================
**one size**             ``cache``: request by request, by their ``keys``, with the manager of each ``medium``
                         that a server has; in front the ``gpu_tier``, or one that says what is ``leaving`` it;
                         ``homes`` are disks that several servers share
**all sizes at once**    ``stack``, over the ``shape`` of a trace, to a ``curve``
**what no policy beats** ``bounds``
**what is said of it**   ``tally``: hits by tier, ages, a series; ``beside``: what the trace's own server counted
======================== ==================================================================================
"""
