"""From what a step computes to stores.

``storing`` stores complete chunks, in ``batches``, and sets the fences of every step. Where chunks are stored when
their blocks are given away, ``evictions`` keeps what was left in these. ``handed_states`` and ``tails`` store what
the engine says is worth keeping of states, and of prompts that end within a block; both begin their jobs by
``boundary_store``.
"""
