"""Classes for tests, copied to a folder on ``sys.path`` as the module ``kvf_zoo`` and imported by name."""

from typing import Any

import kv_api


class _Connector(kv_api.KVConnectorBase_V1):
    """Does nothing; remembers how it was made."""

    given: dict[str, Any]
    shutdowns = 0

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        return 0, False

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None: ...

    def build_connector_meta(self, scheduler_output: Any) -> Any: ...

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None: ...

    def wait_for_layer_load(self, layer_name: str) -> None: ...

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None: ...

    def wait_for_save(self) -> None: ...

    def shutdown(self) -> None:
        self.shutdowns += 1


class Two(_Connector):
    def __init__(self, vllm_config: Any, role: Any) -> None:
        super().__init__(vllm_config, role)
        self.given = {"role": role}


class Three(_Connector):
    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self.given = {"role": role, "kv_cache_config": kv_cache_config}


class Other(_Connector):
    """Inherits the base's constructor."""


class Hma(Other, kv_api.SupportsHMA):
    def request_finished_all_groups(self, request: Any, block_ids: Any) -> tuple[bool, None]:
        return False, None


class Parent(Hma):
    """Works with several groups if its configuration says so, and creates children by the factory."""

    @classmethod
    def all_children_support_hma(cls, kv_transfer_config: Any) -> bool:
        return bool(kv_transfer_config.kv_connector_extra_config.get("hma", False))

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        from kv_factory import KVConnectorFactory

        super().__init__(vllm_config, role, kv_cache_config)
        children = vllm_config.kv_transfer_config.kv_connector_extra_config.get("connectors", [])
        configs = [kv_api.KVTransferConfig.from_mapping(child) for child in children]
        self.classes = [KVConnectorFactory.get_connector_class(config) for config in configs]


class Abstract(kv_api.KVConnectorBase_V1):
    """Lacks all that is abstract but ``wait_for_save``."""

    def wait_for_save(self) -> None: ...


class Strange(_Connector):
    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any, more: int) -> None: ...


class Raises(_Connector):
    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any = None) -> None:
        raise TypeError("from inside")


class V0(kv_api.KVConnectorBase):
    def __init__(self, rank: int, local_rank: int, config: Any) -> None:
        self.given = {"rank": rank, "local_rank": local_rank}
        self.config = config
        self.closes = 0

    def close(self) -> None:
        self.closes += 1

    def send_kv_caches_and_hidden_states(self, *args: Any) -> None: ...

    def recv_kv_caches_and_hidden_states(self, *args: Any) -> tuple[Any, bool, Any]:
        return None, False, None


class _Spec(kv_api.OffloadingSpec):
    given: dict[str, Any]

    def get_manager(self) -> Any: ...

    def get_worker(self, kv_caches: Any) -> Any: ...


class Spec(_Spec):
    def __init__(self, config: Any) -> None:
        self.given = {"config": config}


class OldSpec(_Spec):
    def __init__(self, config: Any, kv_cache_config: Any) -> None:
        self.given = {"config": config, "kv_cache_config": kv_cache_config}


class AbstractSpec(kv_api.OffloadingSpec): ...


class NoConnector: ...


class KVConnectorBase: ...


class KVConnectorBase_V1(KVConnectorBase): ...  # noqa: N801 - the very name of the other class


class Foreign(KVConnectorBase_V1):
    """Derives from a class that has the right name and is another one."""


class Grandchild(Foreign): ...


def function() -> None: ...
