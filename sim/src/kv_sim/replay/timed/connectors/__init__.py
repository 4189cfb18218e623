"""The connectors of a timed replay: those of a server, but their copies take the time that a model says.

``timed_config`` makes them from a ``--kv-transfer-config``. Host memory is ``host_memory``, a disk is ``files``,
and pulls from other servers are ``pulls``. A server without a connector gets the one of ``nothing``.
"""
