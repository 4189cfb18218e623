"""Makes a connector of kv-api one of vLLM's: with vLLM's base classes, and vLLM's values where vLLM inspects them.

A class inside vLLM is written as ``class X(InsideVllm, OursX, *VLLM_BASES)``: our connector decides, vLLM's bases
make it an instance of vLLM's classes, and ``InsideVllm`` translates between them. Both constructors run, vLLM's
first, so that methods that only a newer vLLM's base class has find their attributes. ``inside_vllm`` makes such a
class of any connector.
"""

from collections.abc import Iterable
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, SupportsHMA

import kv_api
from kv_api import ConfigError, KVConnectorRole, KVConnectorStats
from kv_vllm.connectors.one_load import Match, OneLoad
from kv_vllm.refused import (
    refuse_context_parallelism,
    refuse_loads_that_nothing_reads,
    refuse_worker_of_another_engine,
)
from kv_vllm.translate import events_to_vllm, group_kind, role_of, to_vllm
from kv_vllm.versions import require_version

VLLM_BASES = (KVConnectorBase_V1, SupportsHMA)


class InsideVllm:
    """Translates arguments and answers, and offers no load for which vLLM's scheduler could wait for ever.

    A mixin: it must come before the connector's class among the bases.
    """

    shares_tokens = False
    """Whether the connector supports blocks whose tokens are shared by ranks (decode context parallelism)."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any = None) -> None:
        require_version()
        refuse_context_parallelism(vllm_config, shares_tokens=self.shares_tokens)
        ours = role_of(role)
        if ours is KVConnectorRole.SCHEDULER:
            refuse_worker_of_another_engine(vllm_config)
            refuse_loads_that_nothing_reads(vllm_config)
        KVConnectorBase_V1.__init__(self, vllm_config, to_vllm(ours), kv_cache_config)
        super().__init__(vllm_config, ours, kv_cache_config)  # type: ignore[call-arg]
        self._vllm_role = to_vllm(ours)
        groups = kv_cache_config.kv_cache_groups if kv_cache_config is not None else ()
        self._group_kinds = tuple(group_kind(group.kv_cache_spec) for group in groups)
        self._one_load = OneLoad()

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> Match:
        match = super().get_num_new_matched_tokens(request, num_computed_tokens)  # type: ignore[misc]
        return self._one_load.answer(request.request_id, match)

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        self._one_load.give(request.request_id, num_external_tokens)
        super().update_state_after_alloc(request, blocks, num_external_tokens)  # type: ignore[misc]

    def build_connector_meta(self, scheduler_output: Any) -> Any:
        self._one_load.forget(scheduler_output.finished_req_ids)
        return super().build_connector_meta(scheduler_output)  # type: ignore[misc]

    @property
    def role(self) -> Any:
        return self._vllm_role

    def get_external_cache_hit_sources(self, request: Any, num_external_tokens: int) -> Any:
        sources = super().get_external_cache_hit_sources(request, num_external_tokens)  # type: ignore[misc]
        return {to_vllm(source): tokens for source, tokens in sources.items()}

    def take_events(self) -> Iterable[Any]:
        events = super().take_events()  # type: ignore[misc]
        return events_to_vllm(events, self._group_kinds) if events else ()

    def get_kv_connector_stats(self) -> Any:
        return to_vllm(super().get_kv_connector_stats())  # type: ignore[misc]

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> Any:
        stats: KVConnectorStats | None = super().build_kv_connector_stats(data)  # type: ignore[misc]
        return to_vllm(stats)


def inside_vllm(connector_class: type[kv_api.KVConnectorBase_V1]) -> type[Any]:
    """The class for vLLM of a connector that was written for kv-api.

    Assign it to the name that configurations give as ``kv_connector``, in the module of
    ``kv_connector_module_path``.
    """
    given: Any = connector_class
    if not isinstance(given, type) or not issubclass(given, kv_api.KVConnectorBase_V1):
        raise ConfigError(f"inside_vllm: expected a class of kv_api.KVConnectorBase_V1, got {connector_class!r}")
    if issubclass(connector_class, KVConnectorBase_V1):
        raise ConfigError(f"inside_vllm: {connector_class.__qualname__} is one of vLLM's already")
    bases = VLLM_BASES if issubclass(connector_class, kv_api.SupportsHMA) else (KVConnectorBase_V1,)
    body = {"__module__": connector_class.__module__, "__doc__": connector_class.__doc__}
    return type(connector_class.__name__, (InsideVllm, connector_class, *bases), body)
