"""Engines of one machine that read each other's chunks.

============== ========================================================================================
``place``      which of the engines one is, and how a chunk of another one is told from one of its own
``home``       the home of an engine among others: a lock of its own, and an epoch in common
``listing``    the file in which an engine says what it has, and in which slots
``own_list``   who writes it; ``loans``: what keeps a chunk in its slot while somebody else reads it
``neighbours`` who reads those of the others: what they have, and what is borrowed of it
``manager``    the scheduler's side: files, and what the neighbours have; what it asks of both is in
               ``neighbourhood``
``slots``      the worker's side: its own file, and those of the neighbours
============== ========================================================================================
"""
