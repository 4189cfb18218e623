"""The known formats of traces: a file each, which has one or several as ``Format`` objects.

``lengths`` lists several that have times and lengths, and no ids. ``spans/`` is what ``otel`` needs.
"""
