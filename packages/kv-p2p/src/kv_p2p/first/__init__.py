"""vLLM's first family (V0): connectors that move whole prompts between two engines, keyed by their tokens.

==================== ======================================================================================
``connector``        ``SimpleConnector``; ``options``: its settings
``model_input``      reads an engine's batch; ``paged``: reads and writes its KV caches
``agent``            ``KVTransferAgent``, by which a worker uses the connector
``lookup_buffer/``   a table keyed by tokens, or by strings, over pipes
``pipe/``            a FIFO of tensors: within a process, or over TCP
==================== ======================================================================================

It uses threads and numpy, and is imported at its first use.
"""
