"""How a request's tokens are divided into chunks, and the keys of chunks.

Depends only on the engine's groups. Pure.

========== ==============================================
``layout`` the tokens, blocks and chunks of each group
``naming`` the keys of chunks and tails
``reach``  which chunks of a window anybody may ever need
========== ==============================================
"""
