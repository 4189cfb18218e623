"""Conformance: does a connector do what it claims? For ``kv-sim conform`` and for pytest.

``scenarios`` runs a connector claim by claim, and ``report`` formats the results. ``command`` does so on the
command line, and ``items`` as tests of pytest.
"""
