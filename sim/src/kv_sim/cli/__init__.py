"""The command ``kv-sim``: from what was typed to what is run, and to an exit code.

===================== =====================================================================================
``start``             imports what follows, and runs it
``main``              runs a command, by its name in ``COMMANDS``
``options``           what can be typed, of all commands
``fuzz``              histories of seeds; ``replay_schedule``: one from a file
``subjects``          the connectors that are known; ``version``: the packages that are installed
===================== =====================================================================================

Commands whose work has a folder of its own are there: ``campaign``, ``conformance``, ``growth``, ``replay``,
``zoo``. What all of them share is in ``command``, which knows none of them.
"""
