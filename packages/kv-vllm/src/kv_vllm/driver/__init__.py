"""The engine ``vllm`` of the testbed: vLLM's own schedulers and hooks over the testbed's memory.

==================== ===========================================================================================
**the engine**       that a world drives
``engine``           the engine; ``step``: one step of it; ``setup``: makes its parts
``fitting``          which worlds it can run
``requests``         makes vLLM's requests of the testbed's
``worker``           the worker of a rank; ``connector``: the connector that vLLM gets, which passes calls on
``view``             vLLM's scheduler as the testbed reads it; ``ledger``: the testbed's own records of it
``events``           KV events of vLLM's connectors
``drafted_states``   which block has which state, if drafts are computed beside states
``crash``            turns an error that vLLM raises into a violation
``known_faults``     known faults of vLLM itself, at which a history ends
``surroundings/``    what vLLM's connectors find in a server
**connectors**       that are driven
``subjects``         known connectors, with the traits that they claim
``classes``          any other connector, by its name; ``hunt``: looks for failures until the time is over
==================== ===========================================================================================

If the package of a connector changes vLLM's runner V1, its class names a worker with the same change
(``setup.RUNNER``).
"""
