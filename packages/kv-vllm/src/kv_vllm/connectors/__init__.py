"""Our connectors inside an unmodified vLLM, as its ``kv_transfer_config`` names them.

``inside`` is what each of ours needs to be one of vLLM's, with ``one_load``, which keeps from vLLM's scheduler
what that would wait for in vain. Ours are ``offloading``, with the metrics that vLLM calls deprecated (``prom``)
and a look at foreign keys (``keys``) and at too little memory (``room``), ``p2p``, and ``multi``, whose children
may be vLLM's own (``foreign``). ``host_spec`` is the other way round: our host memory under vLLM's own connector.
"""
