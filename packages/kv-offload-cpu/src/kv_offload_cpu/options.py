"""What a user can set of this medium in the connector's extra config, read once and checked."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import Enum
from math import isfinite
from typing import Any, Final, TypeVar

from kv_api import ConfigError
from kv_api.errors import refuse_misspelt, unknown_name


class CopyEngineChoice(Enum):
    """Which copy engine moves the bytes."""

    AUTO = "auto"
    """In host memory ``host-stream`` where it can be had, else ``host``; on a device what ``copy.cuda.table``
    knows, if it proves itself there, else ``cuda``."""
    HOST = "host"
    """By C's library and calls of the kernel."""
    HOST_STREAM = "host-stream"
    """By a compiled loop that writes past the caches."""
    CUDA = "cuda"
    """One copy of the device for each range."""
    CUDA_BATCH = "cuda-batch"
    """Calls of the driver, of many copies each."""
    CUDA_GATHER = "cuda-gather"
    """A kernel for each group of a job."""
    CUDA_STAGED = "cuda-staged"
    """By way of a buffer on the device."""
    CUDA_BEST = "cuda-best"
    """For each job whichever of these three was fastest when they were tried on this device."""


class MemoryChoice(Enum):
    """Whose memory the chunks are in."""

    AUTO = "auto"
    """``private`` for one worker, else ``shared``."""
    PRIVATE = "private"
    """Each worker has memory of its own."""
    SHARED = "shared"
    """All workers map one file, so that any of them finds whole chunks."""


@dataclass(frozen=True)
class Options:
    """The settings, with their defaults. ``cpu_bytes_to_use`` counts all workers together."""

    cpu_bytes_to_use: int
    eviction_policy: str = "lru"
    cache_policy_module_path: str | None = None
    store_threshold: int = 0
    max_tracker_size: int = 64_000
    copy_engine: CopyEngineChoice = CopyEngineChoice.AUTO
    copy_threads: int = 0
    """Threads that share the bytes of one job in the host engine; 0: as many as pay."""
    host_memory: MemoryChoice = MemoryChoice.AUTO
    shared_memory_dir: str = "/dev/shm"
    pin_memory: bool = True
    checksum: bool = False


OWN_KEYS: Final = tuple(Options.__dataclass_fields__)

_ChoiceT = TypeVar("_ChoiceT", bound=Enum)


def read_options(extra_config: Mapping[str, Any], extra_keys: Collection[str] = ()) -> Options:
    """The settings in ``extra_config``, where a subclass of the spec has ``extra_keys``, too.

    Other keys are ignored unless they look like one of ours misspelt: the connector has its keys in the same
    mapping. It is for the connector, which knows both, to say what looks like one of the subclass's.
    """
    foreign = [key for key in extra_config if key not in extra_keys]
    refuse_misspelt(foreign, OWN_KEYS, where="kv_connector_extra_config")
    if extra_config.get("cpu_bytes_to_use") is None:
        raise ConfigError("cpu_bytes_to_use: not set; it is the host memory to use, in bytes, over all workers")
    given = {key: extra_config[key] for key in OWN_KEYS if key in extra_config}
    read: dict[str, Any] = {}
    for key, value in given.items():
        if key == "cpu_bytes_to_use":
            read[key] = _bytes(key, value)
        elif key in ("store_threshold", "copy_threads"):
            read[key] = _whole(key, value, 0)
        elif key == "max_tracker_size":
            read[key] = _whole(key, value, 1)
        elif key == "copy_engine":
            read[key] = _choice(key, value, CopyEngineChoice)
        elif key == "host_memory":
            read[key] = _choice(key, value, MemoryChoice)
        elif key in ("pin_memory", "checksum"):
            read[key] = _of_type(key, value, bool)
        elif key == "cache_policy_module_path" and value is None:
            read[key] = None
        else:
            read[key] = _of_type(key, value, str)
    return Options(**read)


def _bytes(key: str, value: object) -> int:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not isfinite(value) or value < 1:  # type: ignore[arg-type, operator]
        raise ConfigError(f"{key}: expected a number of bytes, at least 1, got {value!r}")
    return int(value)  # type: ignore[call-overload, no-any-return]


def _whole(key: str, value: object, least: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ConfigError(f"{key}: expected a whole number of at least {least}, got {value!r}")
    return value


def _of_type(key: str, value: Any, kind: type) -> Any:
    if not isinstance(value, kind):
        raise ConfigError(f"{key}: expected {kind.__name__}, got {value!r} ({type(value).__name__})")
    return value


def _choice(key: str, value: object, choices: type[_ChoiceT]) -> _ChoiceT:
    for choice in choices:
        if choice.value == value:
            return choice
    raise ConfigError(unknown_name(key, value, [choice.value for choice in choices]))
