"""Looking at a history: ``watch`` tells what an action changed; ``log`` and ``perfetto`` write it.

Of each engine ``engine_lines`` says what is new, and ``engine_tracks`` draws it on ``tracks``. ``brief`` has the
words for any value, which are the same in every run, and ``describe`` those for worlds, actions and requests.
"""
