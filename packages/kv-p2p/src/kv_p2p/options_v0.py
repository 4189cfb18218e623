"""What a user can set of ``SimpleConnector``, read once and checked."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any, Final, Literal, cast, get_args

from kv_api import ConfigError, TransferConfig
from kv_api.errors import unknown_name

Role = Literal["kv_producer", "kv_consumer"]
PORT_MAX: Final = 65535


@dataclass(frozen=True)
class Options:
    """The settings, with their defaults."""

    role: Role
    port: int
    """Where this rank's producer listens: what was set, and the rank."""
    host: str = "127.0.0.1"
    """The address at which the producer listens, and to which the consumer connects."""
    buffer_bytes: int = 1_000_000_000
    """From how many bytes on that nobody took yet the producer stands still."""
    connect_seconds: float = 60.0
    """How long each side waits for the other."""
    wait_seconds: float | None = None
    """How long the consumer waits for a prompt before it computes it itself; None: as long as it takes."""


OWN_KEYS: Final = tuple(key for key in Options.__dataclass_fields__ if key != "role")


def read_options(transfer: TransferConfig, rank: int) -> Options:
    """The settings in a ``kv_transfer_config``, for one rank."""
    if type(rank) is not int or rank < 0:
        raise ConfigError(f"rank: expected a whole number of at least 0, got {rank!r}")
    role = _role(transfer.kv_role)
    extra: Mapping[str, Any] = transfer.kv_connector_extra_config
    for key in extra:
        if key not in OWN_KEYS:
            raise ConfigError(f"kv_connector_extra_config: {unknown_name('key', key, OWN_KEYS)}")
    read: dict[str, Any] = {key: _READERS[key](key, value) for key, value in extra.items() if key != "port"}
    name, base = ("port", extra["port"]) if "port" in extra else ("kv_port", getattr(transfer, "kv_port", None))
    return Options(role, _port(name, base, rank), **read)


def _role(value: object) -> Role:
    for role in get_args(Role):
        if value == role:
            return cast(Role, role)
    choices = ", ".join(get_args(Role))
    raise ConfigError(f"kv_role: SimpleConnector works in one direction, got {value!r}; choices: {choices}")


def _port(name: str, value: object, rank: int) -> int:
    most = PORT_MAX - rank
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
        raise ConfigError(
            f"{name}: expected a port from 1 to {most} (rank {rank} uses it + {rank}), got {value!r}"
        )
    return value + rank


def _host(key: str, value: object) -> str:
    if not isinstance(value, str) or not value:
        raise ConfigError(f"{key}: expected a name or an address, got {value!r}")
    return value


def _bytes(key: str, value: object) -> int:
    if not _is_number(value) or value < 1:  # type: ignore[operator]
        raise ConfigError(f"{key}: expected a number of bytes, at least 1, got {value!r}")
    return int(value)  # type: ignore[call-overload, no-any-return]


def _seconds(key: str, value: object) -> float:
    if not _is_number(value) or value <= 0:  # type: ignore[operator]
        raise ConfigError(f"{key}: expected seconds, more than 0, got {value!r}")
    return float(value)  # type: ignore[arg-type]


def _seconds_or_none(key: str, value: object) -> float | None:
    return None if value is None else _seconds(key, value)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and isfinite(value)


_READERS: Final = {
    "host": _host,
    "buffer_bytes": _bytes,
    "connect_seconds": _seconds,
    "wait_seconds": _seconds_or_none,
}
