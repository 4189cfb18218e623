"""How requests lie in chunks, and what chunks are called: what follows from the engine's groups alone. Pure.

``layout``: tokens, blocks and chunks of each group. ``naming``: the keys of chunks and tails. ``reach``: which
chunks of a window anybody may ever need.
"""
