"""Conformance: does a connector do what it claims? For ``kv-sim conform`` and for pytest.

``scenarios`` are the things that are tried, and ``report`` words the result. ``command`` runs them on the command
line. ``items`` makes pytest tests of them.
"""
