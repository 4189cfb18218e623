"""``kv-sim size``: how much memory or disk to buy.

=================== ===============================================
``around``          the caches around the one that is sized
``capacities``      tries capacities and policies
``recommended``     picks one of them
``transfer_config`` the ``--kv-transfer-config`` to paste
=================== ===============================================
"""
