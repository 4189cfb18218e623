"""``kv-sim replay`` and ``kv-sim size``: their options, the files that they write, and what they do in turn.

``arguments`` are the options, and ``foreign`` those of another fidelity, which are refused; ``selection`` says
what is meant by what was typed. ``run`` reads, replays and reports, with a bar of ``progress``; ``outputs`` are
the files.
"""
