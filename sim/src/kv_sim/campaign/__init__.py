"""Campaigns, for ``kv-sim campaign``: every subject over many seeds, until time is up.

``processes`` runs the seeds. ``found`` collects the failures, and which legal situations were reached. ``command``
prints both.
"""
