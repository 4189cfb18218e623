"""Engines of one machine that read each other's chunks.

=================== ===================================================================================
``manager``         the scheduler's side: what the engine has itself, and what its neighbours have; what it
                    needs of these is in ``neighbourhood``
``listing``         the file that tells which chunk is in which slot of an engine
``own_listing``     writes it
``neighbours``      reads those of neighbours, and borrows; ``whereabouts``: where all their chunks are
``loans``           the locks that keep a chunk in its slot while a neighbour reads it
``place``           the numbers by which a job names a slot and its engine
``slots``           the worker's side: its own file, and those of the neighbours, each a ``slot_borrower``
=================== ===================================================================================
"""
