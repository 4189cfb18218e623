"""The first family, vLLM's V0: whole prompts between two engines, keyed by their tokens.

==================== ======================================================================================
``connector``        ``SimpleConnector``; ``options``: what an operator can set
``model_input``      what it reads of an engine's batch, and ``paged``: of its caches
``agent``            a worker's one entry to it
``lookup_buffer/``   a table keyed by tokens, or by strings, over pipes
``pipe/``            a FIFO of tensors: within a process, or over TCP
==================== ======================================================================================

It has threads and numpy, and is imported when it is first asked for.
"""
