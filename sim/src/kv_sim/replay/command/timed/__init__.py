"""``--fidelity engine`` of ``kv-sim replay`` and ``size``: ``arguments`` are its options, ``run`` obeys them.

It imports the engine model, so it is imported only if that is asked for.
"""
