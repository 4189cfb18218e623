"""How a whole job is copied in a few calls.

========== =====================================================================================================
``batch``  by the driver's batched copy
``gather`` by a kernel, which reads a ``page_table``
``staged`` through a buffer on the device: the job is cut into ``pieces``, and each takes a kernel and a batch
========== =====================================================================================================

Each uses the device by a protocol, so tests can put a model of a device in its place.
"""
