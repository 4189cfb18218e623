"""``kv-sim replay`` and ``kv-sim size``.

============= ===============================================================
``arguments`` their options; ``trace_arguments``: those that read the trace
``foreign``   options that don't go with the chosen fidelity, and are refused
``selection`` what the options mean
``run``       reads, replays and reports; ``progress``: the bar meanwhile
``outputs``   the files that they write
``timed/``    the options of engine fidelity, and what they mean
============= ===============================================================
"""
