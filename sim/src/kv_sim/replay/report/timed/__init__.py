"""What is shown of a replay with time: ``text`` is what is printed, ``as_json`` what ``--json`` writes.

It brings the engine model with it, so it is imported where there was such a replay.
"""
