"""How results of engine fidelity are shown: ``text`` is what is printed, ``as_json`` what ``--json`` writes.

It imports the engine model, so it is imported only for such replays.
"""
