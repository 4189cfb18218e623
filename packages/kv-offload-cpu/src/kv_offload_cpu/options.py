"""What a user can set of this medium in the connector's extra config, read once and checked."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import partial
from math import isfinite
from typing import Any, Final, TypeAlias, TypeVar

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
    """A kernel for each group of a job, for any device: the threads of a few multiprocessors."""
    CUDA_BULK = "cuda-bulk"
    """A kernel for each group of a job, from Hopper on: the bulk copies of two multiprocessors."""
    CUDA_STAGED = "cuda-staged"
    """By way of a buffer on the device."""
    CUDA_BEST = "cuda-best"
    """For each job whichever of these was fastest when they were tried on this device."""


class CopySubmission(Enum):
    """Who gives a job's copies to a CUDA device."""

    CALLER = "caller"
    """The thread that submits the job, which is held as long as that takes."""
    THREAD = "thread"
    """A thread for each lane, which needs no interpreter; ``caller`` where that can't be had."""


class MemoryChoice(Enum):
    """Whose memory the chunks are in."""

    AUTO = "auto"
    """``shared`` for several workers that hold the same layers, else ``private``."""
    PRIVATE = "private"
    """Each worker has memory of its own."""
    SHARED = "shared"
    """All workers map one file, so that any of them finds whole chunks."""


@dataclass(frozen=True, kw_only=True)
class SharedOptions:
    """Settings of any medium that is managed and copied as host memory is, with their defaults."""

    eviction_policy: str = "lru"
    cache_policy_module_path: str | None = None
    store_threshold: int = 0
    max_tracker_size: int = 64_000
    copy_engine: CopyEngineChoice = CopyEngineChoice.AUTO
    copy_threads: int = 0
    """Threads that share the bytes of one job in the host engine; 0: as many as pay."""
    copy_submission: CopySubmission = CopySubmission.CALLER
    pin_memory: bool = True


@dataclass(frozen=True)
class Options(SharedOptions):
    """The settings, with their defaults. ``cpu_bytes_to_use`` counts all workers together."""

    cpu_bytes_to_use: int
    host_memory: MemoryChoice = MemoryChoice.AUTO
    shared_memory_dir: str = "/dev/shm"
    checksum: bool = False


OWN_KEYS: Final = tuple(Options.__dataclass_fields__)

Check: TypeAlias = Callable[[str, Any], Any]
"""From a key and what was set there to the value of the setting, or a ConfigError."""

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
    return Options(**checked(extra_config, _CHECKS))


def checked(extra_config: Mapping[str, Any], checks: Mapping[str, Check]) -> dict[str, Any]:
    """The settings that have a check, as far as they are set."""
    return {key: check(key, extra_config[key]) for key, check in checks.items() if key in extra_config}


def number_of_bytes(key: str, value: object) -> int:
    """Whole or not, as who computes it in another program may have it."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not isfinite(value) or value < 1:  # type: ignore[arg-type, operator]
        raise ConfigError(f"{key}: expected a number of bytes, at least 1, got {value!r}")
    return int(value)  # type: ignore[call-overload, no-any-return]


def whole(key: str, value: object, *, least: int) -> int:
    """The value, if it is a whole number of at least ``least``."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ConfigError(f"{key}: expected a whole number of at least {least}, got {value!r}")
    return value


def of_type(key: str, value: Any, *, kind: type) -> Any:
    """The value, if it is a ``kind``."""
    if not isinstance(value, kind):
        raise ConfigError(f"{key}: expected {kind.__name__}, got {value!r} ({type(value).__name__})")
    return value


def choice(key: str, value: object, *, choices: type[_ChoiceT]) -> _ChoiceT:
    """The member of an enum that has this value."""
    for one in choices:
        if one.value == value:
            return one
    raise ConfigError(unknown_name(key, value, [one.value for one in choices]))


def _text_or_none(key: str, value: Any) -> str | None:
    return None if value is None else of_type(key, value, kind=str)


SHARED_CHECKS: Final[dict[str, Check]] = {
    "eviction_policy": partial(of_type, kind=str),
    "cache_policy_module_path": _text_or_none,
    "store_threshold": partial(whole, least=0),
    "max_tracker_size": partial(whole, least=1),
    "copy_engine": partial(choice, choices=CopyEngineChoice),
    "copy_threads": partial(whole, least=0),
    "copy_submission": partial(choice, choices=CopySubmission),
    "pin_memory": partial(of_type, kind=bool),
}
"""Of `SharedOptions`."""

_CHECKS: Final[dict[str, Check]] = SHARED_CHECKS | {
    "cpu_bytes_to_use": number_of_bytes,
    "host_memory": partial(choice, choices=MemoryChoice),
    "shared_memory_dir": partial(of_type, kind=str),
    "checksum": partial(of_type, kind=bool),
}
