"""Our connectors inside an unmodified vLLM, as its ``kv_transfer_config`` names them.

============== ============================================================================================
``inside``     makes a connector of ours one of vLLM's
``one_load``   offers no second load after a failed one, for which vLLM's scheduler could wait for ever
``offloading`` ``OffloadingConnector``; ``prom``: the metrics that vLLM has deprecated
``keys``       refuses settings that it doesn't read, or warns of them; ``room``: warns of too little host memory
``p2p``        ``P2PConnector``
``multi``      ``MultiConnector``; ``foreign``: its children that are vLLM's own connectors
``host_spec``  our host memory under vLLM's own connector
============== ============================================================================================
"""
