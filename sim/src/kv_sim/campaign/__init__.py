"""Campaigns: every subject over many seeds, until time is up, for ``kv-sim campaign``.

``processes`` run the seeds, ``found`` is what came of them: failures, and what of the legal was reached;
``command`` prints both.
"""
