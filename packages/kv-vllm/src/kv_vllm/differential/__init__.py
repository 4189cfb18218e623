"""The testbed's engine against vLLM's schedulers: the same histories, call by call.

``recorder`` writes the testbed's ``trace`` of a history. ``scheduler`` takes one of vLLM's through it, whose
connector is a ``bridge`` to the script of the trace; ``comparison`` says where the two part. ``matrix`` has the
cells, and what is left out of them; ``situations`` count what has happened, and ``run`` does it all.
"""
