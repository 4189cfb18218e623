"""The engine for KV caches on a CUDA device, and the ways in which it copies a job.

=================== =======================================================================================
``engine``          streams, events and order; what a method is, and the one that copies each range by itself
``methods/``        the others: the driver's batched copy, a kernel, and a buffer on the device
``table``           which method copies which job
``trial``           whether a method works on this device, and how fast
``torch_driver``    what all of them ask of torch
``streams``         streams and events, of what is given at once or noted
``giver``           a thread for each lane, that gives what was noted
``call_loop``       the compiled loops by which it does that
``gather_kernel``   a kernel, in Triton
``bulk_call``       a kernel of bulk copies, whose source is ``bulk_kernel.cu``
``plain_call``      a kernel of short programs for the buffer, whose source is ``plain_kernel.cu``
``kernel_call``     a launch of these as a call of the driver
``nvrtc``           compiles them, and loads them
``batch_call``      the driver's batched copy, by cuda-bindings
=================== =======================================================================================

Only ``torch_driver``, ``gather_kernel``, ``nvrtc`` and ``batch_call`` import what needs a device.
"""
