"""The settings of ``SimpleConnector``, read once and checked."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, cast, get_args

from kv_api import ConfigError, TransferConfig
from kv_api.errors import unknown_name
from kv_p2p.extra_config import EXTRA, Reader, read_bytes, read_host, read_port, read_seconds, read_values

Role = Literal["kv_producer", "kv_consumer"]


@dataclass(frozen=True)
class Options:
    """The settings, with their defaults."""

    role: Role
    port: int
    """The port at which this rank's producer listens: the configured one plus the rank."""
    host: str = "127.0.0.1"
    """The address at which the producer listens, and to which the consumer connects."""
    buffer_bytes: int = 1_000_000_000
    """Bytes of entries in the buffer above which the producer waits."""
    connect_seconds: float = 60.0
    """How long each side waits for the other one at the start."""
    wait_seconds: float | None = None
    """How long the consumer waits for a prompt before it computes it itself; None: without limit."""


_READERS: Final[Mapping[str, Reader]] = {
    "host": read_host,
    "buffer_bytes": read_bytes,
    "connect_seconds": read_seconds,
    "wait_seconds": read_seconds,
}
"""The reader of each key except ``port``."""


def read_options(transfer: TransferConfig, rank: int) -> Options:
    """The settings in a ``kv_transfer_config``, for one rank."""
    if type(rank) is not int or rank < 0:
        raise ConfigError(f"rank: expected a whole number of at least 0, got {rank!r}")
    role = _role(transfer.kv_role)
    extra: Mapping[str, Any] = transfer.kv_connector_extra_config
    known = ("port", *_READERS)
    for key in extra:  # SimpleConnector is never a MultiConnector's child, so all keys must be its own
        if key not in known:
            raise ConfigError(f"{EXTRA}: {unknown_name('key', key, known)}")
    return Options(role, read_port(transfer, rank), **read_values(extra, _READERS))


def _role(value: object) -> Role:
    for role in get_args(Role):
        if value == role:
            return cast(Role, role)
    choices = ", ".join(get_args(Role))
    raise ConfigError(f"kv_role: SimpleConnector works in one direction, got {value!r}; choices: {choices}")
