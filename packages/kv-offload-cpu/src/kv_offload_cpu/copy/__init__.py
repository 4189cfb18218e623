"""How bytes move between the GPU's KV caches and host memory.

============== ============================================================================================
``engine``     what every copy engine can be asked
``choose``     which one a worker gets
``checksum``   around any of them: sums of what is in host memory
``compiled``   functions that llvmlite compiles, and why it can't
``ranges/``    from the blocks and chunks of a job to addresses; pure
``host/``      the engine for KV caches in host memory
``cuda/``      the engine for KV caches on a CUDA device, and its methods
============== ============================================================================================
"""
