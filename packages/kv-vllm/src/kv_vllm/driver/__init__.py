"""The engine ``vllm`` of the testbed: vLLM's own schedulers and hooks over the testbed's memory.

``engine`` is what a world drives, ``step`` by step; where drafts are computed beside states, ``drafted_states``
says which block has which state. ``setup`` makes it: a scheduler of vLLM's, which the testbed reads through a
``view``, and a ``worker`` for each rank, both with a ``connector`` that hands calls on. The ``ledger`` is what
vLLM doesn't keep, and ``events`` are what its connectors announce. A ``crash`` in vLLM is a violation, and at
one of its ``known_faults`` a history ends. ``subjects`` are connectors of vLLM's that can be driven: over
``tensors`` that are the testbed's memory, and with its copies (``host_copy``, ``world_offload``). ``hunt`` looks
for failures until time is up.

Any other connector of vLLM's base class is found by ``classes``. Of what it would have in a server it gets a rank
(``ranks``), attention layers (``layers``), ``ports`` to listen on, streams and events (``streams``), and a
``device`` that waits for nobody. If its package changes vLLM's runner V1, its class names a worker that is changed
alike (``setup.RUNNER``).
"""
