"""Pipes: FIFOs of tensors between two parties.

``base`` is the interface, ``local`` a pipe within one process, ``tcp`` one over a connection. ``rendezvous``
connects a producer and a consumer by two pipes; ``hello`` has their first messages. ``tensors`` encodes and
decodes tensors, and ``arrays`` has operations that numpy and torch call by different names.
"""
