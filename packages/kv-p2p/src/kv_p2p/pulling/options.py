"""What an operator can set in the connector's extra config, checked when the connector is made."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

from kv_api import ConfigError, VllmConfig
from kv_api.errors import refuse_misspelt

NO_OPTIONS: Final = ("name", "save")
"""Keys that whoever made this connector a child may have there."""
MOST_SECONDS: Final = 10**9
"""Sockets and locks can't wait much longer."""


@dataclass(frozen=True)
class Options:
    """The connector's own keys."""

    host: str = "127.0.0.1"
    """Under which other engines reach this one; workers listen there."""
    port: int = 14579
    """Of the first worker; rank r listens at port + r. Not given: the configuration's ``kv_port``."""
    hold_seconds: float = 120.0
    """How long the blocks of a prompt wait to be pulled."""
    pull_seconds: float = 30.0
    """After how long a pull counts as failed, and how long a connection may be silent."""


def parse_options(vllm_config: VllmConfig) -> Options:
    """Read and check them."""
    transfer = vllm_config.kv_transfer_config
    if transfer is None:
        raise ConfigError("P2PConnector needs a kv_transfer_config, and there is none")
    extra: Mapping[str, Any] = transfer.kv_connector_extra_config
    own = [field.name for field in fields(Options)]
    refuse_misspelt(extra, {*own, *NO_OPTIONS}, where="kv_connector_extra_config")
    values = {key: _read(key, extra[key]) for key in own if extra.get(key) is not None}
    options = Options(**{"port": getattr(transfer, "kv_port", Options.port), **values})
    return _with_last_port(options, vllm_config)


def _with_last_port(options: Options, vllm_config: VllmConfig) -> Options:
    """The same, where each worker of each replica of the engine has a port."""
    parallel = vllm_config.parallel_config
    first = options.port + getattr(parallel, "data_parallel_index", 0) * parallel.world_size
    last = first + parallel.world_size - 1
    if not 0 < options.port <= last <= 65535:
        raise ConfigError(
            f"kv_connector_extra_config.port: got {options.port}; the workers of this engine would listen at "
            f"{first} to {last}, and ports are 1 to 65535"
        )
    return Options(options.host, first, options.hold_seconds, options.pull_seconds)


def _read(key: str, value: object) -> Any:
    match key:
        case "host":
            if not isinstance(value, str) or not value:
                raise _wrong(key, value, "a host name or an address")
        case "port":
            if not isinstance(value, int) or isinstance(value, bool):
                raise _wrong(key, value, "a port, 1 to 65535")
        case _:
            if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value <= MOST_SECONDS:
                raise _wrong(key, value, f"a number of seconds above 0, at most {MOST_SECONDS}")
            return float(value)
    return value


def _wrong(key: str, value: object, expected: str) -> ConfigError:
    return ConfigError(f"kv_connector_extra_config.{key}: expected {expected}, got {value!r}")
