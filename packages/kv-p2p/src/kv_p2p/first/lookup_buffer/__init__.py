"""Lookup buffers: what makes a table of a pipe, keyed by tokens or by strings.

``base`` has the two interfaces, ``table`` decides which entry answers which request, ``simple`` is the buffer
over two pipes, ``store`` what is keyed by strings.
"""
