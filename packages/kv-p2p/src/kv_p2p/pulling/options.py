"""The settings in the connector's extra config, checked when the connector is made."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from kv_api import ConfigError, KVCacheConfig, VllmConfig
from kv_api.errors import refuse_misspelt
from kv_p2p.extra_config import (
    DEFAULT_PORT,
    EXTRA,
    Reader,
    read_blocks,
    read_host,
    read_port,
    read_seconds,
    read_values,
)
from kv_p2p.pulling.carrier import CARRIERS, TCP

HELD_SHARE: Final = 3
"""If nothing else is said, one block in this many may be held of an engine that also pulls."""
NO_OPTIONS: Final = ("name", "save")
"""Keys of the extra config that a MultiConnector uses for its children."""
EVERYWHERE: Final = ("0.0.0.0", "::")


@dataclass(frozen=True)
class Options:
    """The connector's settings."""

    host: str = "127.0.0.1"
    """The host name or address by which other engines reach this one."""
    port: int = DEFAULT_PORT
    """The port of the first worker; rank r listens at port + r. Default: the configuration's ``kv_port``."""
    hold_seconds: float = 120.0
    """Seconds for which the blocks of a prompt are held for a pull."""
    pull_seconds: float = 30.0
    """Seconds after which a pull counts as failed; also the longest silence of a connection."""
    listen_host: str | None = None
    """The address at which workers listen. None: ``host``."""
    carrier: str = TCP
    """What moves the bytes of blocks: a carrier's name, or ``tcp`` for the connection itself."""
    mooncake_protocol: str = "rdma"
    """The protocol of Mooncake's transfer engine."""
    mooncake_device: str = ""
    """Network devices for Mooncake's transfer engine, separated by commas. Empty: it chooses."""
    nixl_backend: str = "UCX"
    """The plugin by which NIXL moves bytes."""
    max_held_blocks: int | None = None
    """How many blocks of all KV cache groups may be held at once. None: no limit. Default: of an engine that also
    pulls (``kv_both``) a third of its blocks, else None."""
    model_name: str | None = None
    """The model's name in tickets. None: its path."""


def _read_reachable_host(place: str, value: object) -> str:
    host = read_host(place, value)
    if host in EVERYWHERE:
        raise ConfigError(
            f"{place}: expected what other engines reach this one by, got {host!r}; to listen everywhere, set "
            f"{EXTRA}.listen_host to it"
        )
    return host


def _read_carrier(place: str, value: object) -> str:
    if value not in CARRIERS:
        raise ConfigError(f"{place}: expected one of {', '.join(CARRIERS)}, got {value!r}")
    return str(value)


def _read_name(place: str, value: object) -> str:
    if not isinstance(value, str) or not value:
        raise ConfigError(f"{place}: expected a name, got {value!r}")
    return value


def _read_text(place: str, value: object) -> str:
    if not isinstance(value, str):
        raise ConfigError(f"{place}: expected text, got {value!r}")
    return value


_READERS: Final[Mapping[str, Reader]] = {
    "host": _read_reachable_host,
    "listen_host": read_host,
    "hold_seconds": read_seconds,
    "pull_seconds": read_seconds,
    "max_held_blocks": read_blocks,
    "model_name": _read_name,
    "carrier": _read_carrier,
    "mooncake_protocol": _read_text,
    "mooncake_device": _read_text,
    "nixl_backend": _read_text,
}
"""The reader of each key except ``port``."""


def parse_options(vllm_config: VllmConfig, kv_cache_config: KVCacheConfig | None = None) -> Options:
    """Read and check the settings. Each worker of each data-parallel replica has a port of its own."""
    transfer = vllm_config.kv_transfer_config
    if transfer is None:
        raise ConfigError("P2PConnector needs a kv_transfer_config, and there is none")
    extra: Mapping[str, Any] = transfer.kv_connector_extra_config
    refuse_misspelt(extra, ("port", *_READERS, *NO_OPTIONS), where=EXTRA)
    parallel = vllm_config.parallel_config
    before = getattr(parallel, "data_parallel_index", 0) * parallel.world_size
    values = read_values(extra, _READERS)
    if kv_cache_config is not None and transfer.is_kv_producer and transfer.is_kv_consumer:
        # Requests with tickets end holds, here or at an engine that serves this one, and need blocks for that. If
        # all blocks could be held, all requests would wait until the time of a hold is over.
        values.setdefault("max_held_blocks", kv_cache_config.num_blocks // HELD_SHARE)
    return Options(port=read_port(transfer, before, parallel.world_size), **values)
