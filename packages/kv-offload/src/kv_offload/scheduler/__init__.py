"""The scheduler's side: decides what is loaded, what is stored, and which step waits for which copy. Pure.

============ =================================================================
``side``     takes the engine's calls, and hands each to one of the next three
``loading/`` answers queries, and begins loads
``storing/`` begins stores, and fences blocks
``outcomes`` learns what became of jobs
``state/``   the books, in which these three meet
``events``   tells others what is stored, in vLLM's words
============ =================================================================
"""
