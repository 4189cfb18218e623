"""Shows a history: ``log`` writes it as text, ``perfetto`` as a Chrome trace.

================= ==========================================================================
``watch``         a world that tells watchers what each action changed
``engine_lines``  the lines of a log about one engine
``engine_tracks`` the tracks of a trace about one engine; ``tracks``: how tracks are written
``brief``         any value in a few words, the same in every run
``describe``      a world, an action, a request or a copy in a line
================= ==========================================================================
"""
