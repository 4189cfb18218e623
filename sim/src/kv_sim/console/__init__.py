"""What the commands of ``kv-sim`` share; each is in ``cli`` or in a folder of its own.

============= =============================================================================
``selection`` from the names that were typed to subjects; ``values``: reads single options
``views``     worlds for ``--log`` and ``--perfetto``
``failed``    what is printed of a history that failed
``edge``      turns whatever ends a command into a line and an exit code
``watchdog``  ends a call that doesn't return; ``exits``: a call that would end the process
``workers``   the processes of a command; ``interrupts``: Ctrl-C where there are several
``output``    exit codes and printing; ``table``: tables of text
============= =============================================================================
"""
