"""The connectors of a timed replay: a server's own connectors, whose copies take the time that a model gives.

``timed_config`` makes them from a ``--kv-transfer-config``. ``host_memory`` has the medium for host memory,
``files`` that for a disk, and ``pulls`` the connector that pulls from other servers. A server without a connector
gets the one of ``nothing``, which does nothing.
"""
