"""How a whole job is copied in a few calls.

``batch``: by the driver's batched copy. ``gather``: by a kernel, which is told of a job by a ``page_table``.
``staged``: by way of a buffer on the device, for which ``pieces`` cuts the job; it takes a batch and a kernel.
Each asks a driver, in whose place a model of a device can answer.
"""
