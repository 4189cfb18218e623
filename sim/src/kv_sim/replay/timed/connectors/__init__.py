"""The connectors of a timed replay: those of a server, over media whose copies are timed.

``timed_config`` makes them from a ``--kv-transfer-config``. The media are ``host_memory`` and ``files``; what
servers get from each other is ``pulls``. A server without a connector has that of ``nothing``.
"""
