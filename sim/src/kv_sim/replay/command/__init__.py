"""``kv-sim replay`` and ``kv-sim size``: their options, the files that they write, and what they do in turn.

``run`` reads, replays and reports, with a bar of ``progress``. ``arguments`` are the options, and ``foreign``
those of another fidelity, which are refused; ``outputs`` are the files.
"""
