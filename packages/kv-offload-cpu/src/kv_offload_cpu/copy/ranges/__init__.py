"""From the blocks and chunks of a job to addresses, a whole job at a time. Pure, and without a loop over pages.

``pages`` are a job's blocks with the places of their chunks. ``tensors`` says where the pages of a KV cache are;
``descriptors`` makes byte ranges of both, and ``addresses`` moves in one direction. ``stretches`` finds what can
be copied in one go between two places that have the form of a slot.
"""
