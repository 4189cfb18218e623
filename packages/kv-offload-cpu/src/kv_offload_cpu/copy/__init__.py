"""How bytes move between the GPU's KV caches and host memory.

============ ===============================================================
``engine``   the interface of a copy engine
``choose``   which engine a worker gets
``host/``    the engine for KV caches in host memory
``cuda/``    the engine for KV caches on a CUDA device, and its methods
``checksum`` an engine around any other: it compares checksums before a load
``ranges/``  from the blocks and chunks of a job to addresses; pure
``compiled`` functions that llvmlite compiles
============ ===============================================================
"""
