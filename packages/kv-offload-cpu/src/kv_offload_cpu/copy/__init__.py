"""How bytes move between the GPU's KV caches and host memory.

==================================== =======================================================================
``engine``                           what every copy engine can be asked
``choose``, ``table``, ``trial``     which one a worker gets, and which method a job
``pages``                            from the blocks and chunks of a job to its pages; pure
``descriptors``, ``addresses``       from pages to byte ranges, and from those to addresses; pure
``host``, ``moves``                  the engine for KV caches in host memory, and how it shares a job among cores
``memmove``, ``streaming``           what moves bytes there: C and the kernel, or a compiled loop
``cuda``                             the engine for KV caches on a CUDA device, with one copy for each range
``cuda_batch``, ``batch_call``       its method of the driver's batched copy, and the call
``gather``                           its method of a kernel
``page_table``, ``gather_kernel``    what a kernel is told of a job, and the kernel
``staged``                           its method of a buffer on the device, which takes both
``pieces``, ``stretches``            how a job is cut for a buffer, and which bytes of slots are copied; pure
``torch_driver``                     what all of them ask of torch
==================================== =======================================================================
"""
