"""vllm-kvblockd's connector on a machine without its daemon: its client's part is played by a store in memory."""

import os
import warnings

from kv_vllm_kvblockd_store import STORES, Client, Store

os.environ.setdefault("PYTHONHASHSEED", "0")
"""It doesn't begin without; its own keys don't depend on that."""

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # vLLM compiles something when it is imported
    from vllm_kvblockd import connector as theirs
    from vllm_kvblockd.connector import KvblockdConnector

OF_THE_STORE = ("room", "evicts", "goes", "breaks")

theirs.Client = Client


class OnCpu(KvblockdConnector):
    """It, with a store of the world's. It stores at once, not in a thread, if its own setting doesn't say so."""

    def __init__(self, vllm_config, role, kv_cache_config=None):
        extra = vllm_config.kv_transfer_config.kv_connector_extra_config
        name = extra.setdefault("kvblockd_namespace", vllm_config.model_config.model)
        extra.setdefault("kvblockd_async_store", False)
        self.store = STORES.setdefault(name, Store(**{key: extra[key] for key in OF_THE_STORE if key in extra}))
        super().__init__(vllm_config, role, kv_cache_config)
