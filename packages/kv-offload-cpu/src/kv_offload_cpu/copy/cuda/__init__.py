"""The engine for KV caches on a CUDA device, and the ways in which it copies a job.

=================== =======================================================================================
``engine``          streams, events and order; what a method is, and the one that copies each range by itself
``methods/``        the others: the driver's batched copy, a kernel, and a buffer on the device
``table``           which method copies which job
``trial``           whether a method works on this device, and how fast
``torch_driver``    what all of them ask of torch
``gather_kernel``   a kernel, in Triton
``bulk_call``       a kernel of bulk copies, whose source is ``bulk_kernel.cu``, by NVRTC and cuda-bindings
``batch_call``      the driver's batched copy, by cuda-bindings
``strided_call``    the driver's batched copy of rectangles, by cuda-bindings
=================== =======================================================================================

The last five are the only ones here that import what needs a device.
"""
