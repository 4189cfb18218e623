"""What the commands of ``kv-sim`` share; each is in ``cli`` or in a folder of its own.

======================= ===================================================================================
``selection``           which subjects are meant by what was typed; ``values``: of one option each
``views``               worlds that somebody watches, for ``--log`` and ``--perfetto``
``failed``              what is said of a history that failed
``edge``                whatever ends a command is told, and is an exit code
``watchdog``            ends a call that doesn't return; ``exits``: one that would end the process
``workers``             processes of a command; ``interrupts``: Ctrl-C where there are several
``console``, ``table``  what all of them print with
======================= ===================================================================================
"""
