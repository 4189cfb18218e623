"""The zoo: bugs that KV connectors really had, planted in ours on purpose, to see that the testbed finds them.

``registry.PLANTED`` lists them with the public thread that tells of each and the checker that must catch it. The
bugs live in files by theme, as connector classes that a subject names like any other: ``hits`` and ``transfers``
in the examples, ``ranks`` between workers, ``several`` in MultiConnector. ``hunt`` measures; ``python -m
kv_sim.zoo`` prints.
"""
