"""The command ``kv-sim``: what its words mean, and what it prints.

======================= ===================================================================================
``cli``                 from what was typed to what is run, and to an exit code
``options``             what can be typed, of all commands
``selection``           which subjects are meant by it; ``values``: of one option each
``campaign``            fuzzes all subjects, in several processes
``replay_schedule``     a history from a file
``subjects``            the list of connectors that are known; ``version``: of the packages that are installed
``views``               worlds that somebody watches, for ``--log`` and ``--perfetto``
``watchdog``            ends a call that doesn't return
``workers``             processes of a command; ``interrupts``: Ctrl-C where there are several
``console``, ``table``  what all of them print with
======================= ===================================================================================

Commands whose work has a folder of its own are there: ``conformance``, ``growth``, ``replay``, ``zoo``.
"""
