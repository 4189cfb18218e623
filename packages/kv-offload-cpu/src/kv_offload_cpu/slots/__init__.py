"""Slot numbers of host memory, and what is kept by them; nothing here knows what a chunk is.

``columns`` have an item for each slot, ``free`` are those that hold nothing, ``pins`` count the jobs that use one,
and ``pick`` reads many at once.
"""
