"""The command ``kv-sim``: what its words mean, and what it prints.

``cli`` has the words of all of them, ``options`` what fuzzing and replaying share; ``selection`` finds what a word
names; ``campaign`` fuzzes in several processes; ``console`` and ``table`` print.
Commands whose work has a folder of its own are there: ``conformance``, ``growth``, ``replay``, ``zoo``.
"""
