"""Real bytes, rights to them, and copies that run when the world says.

============ ==============================================================================================
``device``   the memory of one rank, and its queue of launched steps
``launched`` a launched step: what its requests compute and read
``kernels``  writes and reads the slots of a step, and notices wrong bytes (CONTENT)
``content``  the right bytes of a slot
``copies``   a rank's copies, which the world may delay, tear, lose or report twice; ``copy``: one of them
``errands``  an executor that replaces a connector's threads; the world decides when their functions run
``shadow``   the rights of steps and copies to blocks; notices accesses without a right (OWNERSHIP)
``settled``  which tokens of a partly filled block don't change any more
``kv_cache`` the pages of a layer, as a connector gets them
============ ==============================================================================================
"""
