"""How bytes move between the GPU's KV caches and host memory.

========================= ==================================================================================
``engine``                what every copy engine can be asked
``pages``                 from the blocks and chunks of a job to its pages; pure
``descriptors``           from pages to byte ranges; pure
``host``, ``moves``       the engine for KV caches in host memory, and how it moves ranges
``cuda``, ``torch_driver`` the engine for KV caches on a CUDA device, and what it asks of torch
========================= ==================================================================================
"""
