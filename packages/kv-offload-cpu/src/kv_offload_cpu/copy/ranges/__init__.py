"""From the blocks and chunks of a job to addresses, a whole job at a time. Pure, and without a loop over pages.

=============== ===================================================================
``pages``       from blocks and chunks to pages
``tensors``     where the pages of a KV cache are
``descriptors`` from pages to byte ranges
``addresses``   from byte ranges to moves in one direction
``stretches``   which bytes lie together in two places that have the form of a slot
=============== ===================================================================
"""
