"""Real bytes, rights to them, and copies that run when the world says.

============ ==============================================================================================
``device``   the memory of one rank, with the steps that it was given and has yet to run
``launched`` such a step: what its requests compute and read
``kernels``  what it writes, and what it must find there: this is where wrong bytes are noticed
``content``  which bytes are right in a slot
``copies``   a connector's copies: late, torn, lost or told twice, as the world has it; ``copy``: one of them
``errands``  the same of what a connector's own threads would do: an executor in their place
``shadow``   who may read and write which block now: this is where a touch too many is noticed
``settled``  which part of a block that is still filled doesn't change any more
``kv_cache`` the pages of a layer, as a connector gets them
============ ==============================================================================================
"""
