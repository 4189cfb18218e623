"""The known formats of traces: a file each, which has one or several as ``Format`` objects.

Those of chats that programs keep are made by ``kept_chats`` or ``kept_sessions``, with ``chats/messages.py``.

``lengths`` lists several that have times and lengths, and no ids. ``spans/`` is what ``otel`` needs.
"""
