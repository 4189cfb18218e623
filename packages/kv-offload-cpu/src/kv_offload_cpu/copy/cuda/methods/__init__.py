"""How a whole job is copied in a few calls.

========== =====================================================================================================
``batch``  the driver's batched copy
``gather`` a kernel, which reads a ``page_table``
``staged`` by way of a buffer on the device: the job is cut into ``pieces``, and each takes a kernel and a batch
========== =====================================================================================================

Each asks a driver, in whose place a model of a device can answer.
"""
