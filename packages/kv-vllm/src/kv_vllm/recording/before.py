"""``ConnectorBefore``: wraps any connector of vLLM's, and does what that one does.

``kv_connector_extra_config.connector`` is the ``kv_transfer_config`` of the wrapped connector; it inherits the
role, the engine id and the load failure policy from the outer one unless it sets them.
"""

from collections.abc import Callable, Mapping
from copy import copy
from pathlib import Path
from typing import Any, ClassVar, Final

from vllm.config import KVTransferConfig
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorRole,
    SupportsHMA,
    supports_hma,
)

from kv_api import ConfigError
from kv_api.errors import refuse_misspelt
from kv_vllm.handing_on import hand_the_rest_on
from kv_vllm.recording.stats import MetricsBehind, StatsBehind, rebuild
from kv_vllm.refused import refuse_worker_of_another_engine
from kv_vllm.versions import require_version

INHERITED: Final = ("kv_role", "engine_id", "kv_buffer_device", "kv_load_failure_policy")

Opens = Callable[[], None]
"""The function that opens the files, after everything was checked."""


class ConnectorBefore(KVConnectorBase_V1, SupportsHMA):  # type: ignore[misc]
    """The base of wrapping connectors; a subclass overrides the calls that it records."""

    keys: ClassVar[tuple[str, ...]] = ("connector",)
    """The keys of ``kv_connector_extra_config`` that it reads."""
    usual: ClassVar[Mapping[str, Any] | None] = None
    """The ``kv_transfer_config`` of the wrapped connector if none is configured."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        require_version()
        super().__init__(vllm_config, role, kv_cache_config)
        config = self.config_behind(vllm_config)
        transfer = config.kv_transfer_config
        self._behind = transfer.kv_connector, transfer.kv_connector_module_path
        if len(kv_cache_config.kv_cache_groups) > 1 and not KVConnectorFactory.supports_hma_config(transfer):
            raise ConfigError(
                f"{transfer.kv_connector} supports one KV cache group only, but there are "
                f"{len(kv_cache_config.kv_cache_groups)}; set --disable-hybrid-kv-cache-manager"
            )
        # Settings are checked before the wrapped connector is made and allocates memory. Files are opened after it
        # is made: an engine that doesn't start leaves them unchanged.
        is_scheduler = role is KVConnectorRole.SCHEDULER
        if is_scheduler:
            refuse_worker_of_another_engine(vllm_config)
        opens = self.prepare(vllm_config, config, kv_cache_config) if is_scheduler else None
        self.inner = KVConnectorFactory.create_connector(config, self.role, kv_cache_config)
        if opens is not None:
            self._open_or_end(opens)

    def prepare(self, vllm_config: Any, config_behind: Any, kv_cache_config: Any) -> Opens:
        """Read and check the settings of the scheduler's side; returns the function that opens its files."""
        return lambda: None

    def _open_or_end(self, opens: Opens) -> None:
        try:
            opens()
        except BaseException:
            self.inner.shutdown()
            raise

    # -- the class -----------------------------------------------------------------------------

    @classmethod
    def transfer_behind(cls, transfer: Any) -> Any:
        """The ``kv_transfer_config`` of the wrapped connector."""
        inherited = {key: getattr(transfer, key) for key in INHERITED}
        return KVTransferConfig(**{**inherited, **cls._given(transfer.kv_connector_extra_config)})

    @classmethod
    def config_behind(cls, vllm_config: Any) -> Any:
        """The engine's configuration for the wrapped connector."""
        copied = copy(vllm_config)
        copied.kv_transfer_config = cls.transfer_behind(vllm_config.kv_transfer_config)
        return copied

    @classmethod
    def _given(cls, extra: Mapping[str, Any]) -> Mapping[str, Any]:
        """The configured settings of the wrapped connector."""
        refuse_misspelt(extra, cls.keys, where="kv_connector_extra_config")
        given = extra.get("connector", cls.usual)
        if not isinstance(given, Mapping) or not given.get("kv_connector"):
            raise ConfigError(
                "kv_connector_extra_config.connector: expected the kv_transfer_config of a connector, "
                f"got {given!r}"
            )
        return given

    @classmethod
    def get_required_kvcache_layout(cls, vllm_config: Any) -> str | None:
        config = cls.config_behind(vllm_config)
        inner = KVConnectorFactory.get_connector_class(config.kv_transfer_config)
        layout: str | None = inner.get_required_kvcache_layout(config)
        return layout

    @classmethod
    def requires_piecewise_for_cudagraph(cls, extra_config: dict[str, Any]) -> bool:
        given = cls._given(extra_config)
        inner = KVConnectorFactory.get_connector_class(KVTransferConfig(**{"kv_role": "kv_both", **given}))
        return bool(inner.requires_piecewise_for_cudagraph(given.get("kv_connector_extra_config", {})))

    @classmethod
    def supports_sleep_mode(cls, kv_transfer_config: Any) -> bool:
        transfer = cls.transfer_behind(kv_transfer_config)
        return bool(KVConnectorFactory.get_connector_class(transfer).supports_sleep_mode(transfer))

    @classmethod
    def build_prom_metrics(cls, vllm_config: Any, *args: Any) -> MetricsBehind | None:
        config = cls.config_behind(vllm_config)
        inner = KVConnectorFactory.get_connector_class(config.kv_transfer_config)
        metrics = inner.build_prom_metrics(config, *args)
        return None if metrics is None else MetricsBehind(metrics)

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> StatsBehind | None:
        return None if data is None else rebuild(data)

    # -- what is not only handed on ------------------------------------------------------------

    @property
    def requires_kv_delivery(self) -> bool:
        return bool(self.inner.requires_kv_delivery)

    @property
    def supports_divergent_local_hybrid_hits(self) -> bool:
        return bool(self.inner.supports_divergent_local_hybrid_hits)

    def request_finished_all_groups(self, request: Any, block_ids: Any) -> Any:
        if not supports_hma(self.inner):
            return self.inner.request_finished(request, block_ids[0])
        return self.inner.request_finished_all_groups(request, block_ids)

    def get_kv_connector_stats(self) -> StatsBehind | None:
        stats = self.inner.get_kv_connector_stats()
        return None if stats is None else StatsBehind(stats, *self._behind)

    def update_connector_output(self, connector_output: Any) -> None:
        told = connector_output.kv_connector_stats
        if not isinstance(told, StatsBehind):
            self.inner.update_connector_output(connector_output)
            return
        # Not a copy: a MultiConnector removes entries from the engine's own object.
        connector_output.kv_connector_stats = told.stats
        try:
            self.inner.update_connector_output(connector_output)
        finally:
            connector_output.kv_connector_stats = told


def path_in(extra: Mapping[str, Any], key: str) -> Path:
    """The path of a file under a required key of ``kv_connector_extra_config``."""
    path = extra.get(key)
    if not isinstance(path, str) or not path:
        raise ConfigError(f"kv_connector_extra_config.{key}: expected the path of a file, got {path!r}")
    if path.startswith("~"):
        raise ConfigError(
            f"kv_connector_extra_config.{key}: {path!r}: ~ is not expanded here; write the full path"
        )
    return Path(path)


hand_the_rest_on(ConnectorBefore, KVConnectorBase_V1)
