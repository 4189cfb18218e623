"""Our connectors inside an unmodified vLLM, as its ``kv_transfer_config`` names them.

============== ============================================================================================
``inside``     what each of ours needs to be one of vLLM's
``one_load``   keeps a request of vLLM's scheduler from waiting for ever after a failed load
``offloading`` ``OffloadingConnector``; ``prom``: the metrics that vLLM calls deprecated
``keys``       refuses or warns of settings that it doesn't read; ``room``: warns of too little host memory
``p2p``        ``P2PConnector``
``multi``      ``MultiConnector``; ``foreign``: children of it that are vLLM's own
``host_spec``  the other way round: our host memory under vLLM's own connector
============== ============================================================================================
"""
