"""How requests lie in chunks, and what chunks are called: follows from the engine's groups alone. Pure.

========== ==============================================
``layout`` the tokens, blocks and chunks of each group
``naming`` the keys of chunks and tails
``reach``  which chunks of a window anybody may ever need
========== ==============================================
"""
