"""Pipes: FIFOs of tensors between two parties, and what they need to know of tensors.

``base`` is the interface, ``local`` a pair within one process, ``tcp`` a connection. ``rendezvous`` is how two
engines come by two connections, ``hello`` what they say to each other first. ``tensors`` makes bytes of tensors
and back, ``arrays`` is what numpy and torch call by different names.
"""
