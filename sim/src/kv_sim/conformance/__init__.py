"""Conformance: does a connector do what it claims? For ``kv-sim conform`` and for pytest.

``scenarios`` says what is tried, ``report`` what is said about it; ``command`` tries all of them on the command
line, and ``items`` makes tests of them for pytest.
"""
