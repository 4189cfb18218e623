"""From a query to a load.

============ ======================================================================
``matching`` answers a query with a promise, and begins the load
``lookup``   how far complete chunks go; ``tail_lookup``: and an end within a block
``answers``  what the medium says of chunks, asked once for each
``plan``     what a load copies: from a promise and the blocks that the engine gave
============ ======================================================================
"""
