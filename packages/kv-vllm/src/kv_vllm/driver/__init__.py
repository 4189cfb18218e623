"""The engine ``vllm`` of the testbed: vLLM's own schedulers and hooks over the testbed's memory.

==================== ===========================================================================================
**the engine**       as a world drives it
``engine``           the whole; ``step``: one step of it; ``setup``: how it is made
``worker``           the worker of a rank; ``connector``: the connector that vLLM gets, which hands each call on
``view``             vLLM's scheduler as the testbed reads it; ``ledger``: what vLLM doesn't keep
``events``           KV events of vLLM's connectors
``drafted_states``   which block has which state, where drafts are computed beside states
``crash``            turns an error of vLLM's into a violation
``known_faults``     known faults of vLLM's own, at which a history ends
**the surroundings** what a connector of vLLM's finds in a server
``tensors``          the testbed's memory as tensors; ``device``: a device on which nobody waits
``streams``          streams and events; ``ranks``: groups of ranks
``layers``           attention layers; ``ports``: ports to listen on
**connectors**       that are driven
``subjects``         known ones, with what they claim
``classes``          any other, by its name; ``hunt``: looks for failures until time is up
==================== ===========================================================================================

If the package of a connector changes vLLM's runner V1, its class names a worker that is changed alike
(``setup.RUNNER``).
"""
