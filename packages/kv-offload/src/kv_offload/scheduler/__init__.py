"""The scheduler's side: what is loaded, what is stored, and who waits for whom. Pure.

``side`` takes the engine's calls. Three parts decide what comes of them, and meet only in the books (``state``):
``loading`` answers queries and begins loads, ``storing`` begins stores and fences blocks, ``outcomes`` learns what
became of jobs. ``events`` tells others what is stored, in vLLM's words.
"""
