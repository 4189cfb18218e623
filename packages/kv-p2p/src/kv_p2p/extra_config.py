"""Reads and checks values of ``kv_connector_extra_config``, with the same errors for both families.

A key whose value is None counts as not given.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from kv_api import ConfigError
from kv_api.engine import TransferConfig

EXTRA: Final = "kv_connector_extra_config"
DEFAULT_PORT: Final = 14579
"""vLLM's default, for an engine whose configuration has no ``kv_port``."""
LAST_PORT: Final = 65535
MOST_SECONDS: Final = 10**9
"""The longest time to wait that sockets and locks take, about."""

Reader = Callable[[str, object], Any]
"""Takes the place and the value; returns the value that is meant, or raises a ``ConfigError``."""


def read_values(extra: Mapping[str, Any], readers: Mapping[str, Reader]) -> dict[str, Any]:
    """The values that are given, each read by its key's reader."""
    given = {key: value for key in readers if (value := extra.get(key)) is not None}
    return {key: readers[key](f"{EXTRA}.{key}", value) for key, value in given.items()}


def read_port(transfer: TransferConfig, before: int, count: int = 1) -> int:
    """The port of the first of ``count`` workers, whose ports are consecutive.

    The first ``before`` ports from the configured one on belong to other workers. That one is ``port``, or else
    the configuration's own ``kv_port``.
    """
    place, value = f"{EXTRA}.port", transfer.kv_connector_extra_config.get("port")
    if value is None:
        place, value = "kv_port", getattr(transfer, "kv_port", DEFAULT_PORT)
    last = before + count - 1
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= LAST_PORT - last:
        others = f" (a worker listens at it + {last})" if last else ""
        raise _wrong(place, value, f"a port from 1 to {LAST_PORT - last}{others}")
    return value + before


def read_host(place: str, value: object) -> str:
    """A host by name or address."""
    if not isinstance(value, str) or not value:
        raise _wrong(place, value, "a host name or an address")
    return value


def read_seconds(place: str, value: object) -> float:
    """A number of seconds to wait."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value <= MOST_SECONDS:
        raise _wrong(place, value, f"a number of seconds above 0, at most {MOST_SECONDS}")
    return float(value)


def read_blocks(place: str, value: object) -> int:
    """A number of blocks."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise _wrong(place, value, "a number of blocks, at least 1")
    return value


def read_bytes(place: str, value: object) -> int:
    """A number of bytes; a whole float, such as 1e9, is allowed."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not 1 <= value < float("inf"):
        raise _wrong(place, value, "a number of bytes, at least 1")
    return int(value)


def _wrong(place: str, value: object, expected: str) -> ConfigError:
    return ConfigError(f"{place}: expected {expected}, got {value!r}")
