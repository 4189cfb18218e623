"""The engine for KV caches on a CUDA device, and the ways in which it copies a job.

================= ============================================================================================
**the engine**    and what it chooses from
``engine``        takes jobs, keeps their order; the interface of a method, and the simplest: a copy for each range
``methods/``      the others: the driver's batched copy, a kernel, and a buffer on the device
``table``         which method copies which job; ``trial`` measures that on this device
**the device**    for the engine and its methods
``torch_driver``  memory, copies and kernels, by torch
``streams``       streams and events; calls are made at once, or noted for a thread
``giver``         a thread that makes the noted calls; ``call_loop``: its compiled loops
``batch_call``    the driver's batched copy, by cuda-bindings
**kernels**       that methods launch
``gather_kernel`` moves pages; in Triton
``bulk_call``     moves pages by bulk copies (``bulk_kernel.cu``)
``plain_call``    moves pages to the buffer, in short programs (``plain_kernel.cu``)
``kernel_call``   the launch of the latter two as a call of the driver; ``nvrtc``: compiles them
================= ============================================================================================

Only ``torch_driver``, ``gather_kernel``, ``nvrtc`` and ``batch_call`` import what needs a device.
"""
