"""The command ``kv-sim``: from what was typed to what is run, and to an exit code.

============= ======================================================================
``start``     the entry: imports the rest and runs it
``main``      ``COMMANDS``: which function runs which command
``options``   what can be typed, for all commands
``fuzz``      runs the histories of seeds; ``replay_schedule``: runs one from a file
``processes`` runs those of ``fuzz`` in several processes
``subjects``  lists the known connectors; ``version``: lists the installed packages
============= ======================================================================

Larger commands have a folder each: ``campaign``, ``conformance``, ``growth``, ``replay``, ``zoo``. What all of
them share is in ``console``, which knows none of them.
"""
