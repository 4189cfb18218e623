"""Conformance: does a connector do what it claims? For ``kv-sim conform`` and for pytest.

``scenarios`` says what is tried, ``report`` what is said about it, ``items`` makes tests of it for pytest.
"""
