"""From what a step computes to stores.

``storing``: complete chunks, in ``batches``, and the fences of every step. ``handed_states`` and ``tails``:
what the engine says is worth keeping of states and of prompts that end within a block; both by
``boundary_store``.
"""
