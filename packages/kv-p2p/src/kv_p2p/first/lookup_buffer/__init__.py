"""Lookup buffers and stores: tables over pipes, keyed by tokens or by strings.

``base`` has the two interfaces. ``table`` decides which entry answers a request, ``simple`` is the lookup buffer
over two pipes, and ``store`` has the stores, whose keys are strings.
"""
