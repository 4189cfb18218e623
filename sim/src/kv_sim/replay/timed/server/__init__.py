"""The server of a timed replay, as an operator describes it.

============ ============================================================
``hardware`` GPUs and models that are known by name
``settings`` all that a replay depends on
``sizes``    what follows from it, and how much each thing costs
``refuse``   refuses settings and traces that are too large for a replay
============ ============================================================
"""
