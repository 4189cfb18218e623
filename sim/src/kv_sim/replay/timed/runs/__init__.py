"""Traces through the engine, on one server or on several, and what comes of it.

============ =============================================================================
``run``      one trace on one server, or on several that share files
``split``    one trace on servers of which some prefill for the others
``finished`` the raw results of one server; ``answers``: the figures that are made of them
``servers``  runs on several kinds of servers, in several processes
============ =============================================================================
"""
