"""Engines of one machine that read each other's chunks.

=================== ===================================================================================
``manager``         the scheduler's side: what the engine has itself, and what its neighbours have; what it
                    needs of these is in ``neighbourhood``
``listing``         the file in which an engine says what it has, and in which slots
``own_listing``     who writes it
``neighbours``      who reads those of the neighbours, and borrows; what they have together: ``whereabouts``
``loans``           what keeps a chunk in its slot while a neighbour reads it
``place``           how a job says whose slot a chunk is in
``slots``           the worker's side: its own file, and those of the neighbours, each a ``slot_borrower``
=================== ===================================================================================
"""
