"""From the blocks and chunks of a job to addresses, a whole job at a time. Pure, and without a loop over pages.

=============== ===================================================================
``pages``       from blocks and chunks to pages
``tensors``     where the pages of a KV cache are
``descriptors`` from pages to byte ranges
``addresses``   from byte ranges to moves in one direction
``stretches``   which bytes two slots of the same layout can exchange in one copy
=============== ===================================================================
"""
