"""From what a step computes to stores.

================== =====================================================================================
``storing``        stores complete chunks, and sets the fences of every step
``batches``        cuts what is offered into stores
``handed_states``  stores states that the engine hands over
``tails``          stores ends of prompts that lie within a block
``boundary_store`` begins a store for either of these two
================== =====================================================================================
"""
