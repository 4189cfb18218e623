"""The settings of this medium in the connector's extra config, read once and checked."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from kv_api import ConfigError
from kv_api.errors import refuse_misspelt
from kv_offload_cpu.options import (
    SHARED_CHECKS,
    Check,
    SharedOptions,
    checked,
    number_of_bytes,
    of_type,
    whole,
)
from kv_offload_file.sharing.place import MOST_ENGINES


@dataclass(frozen=True)
class FileOptions(SharedOptions):
    """The settings, with their defaults."""

    file_dir: str
    file_bytes_to_use: int
    """Bytes of the files of all workers together."""
    file_tag: str = ""
    """Distinguishes files that an engine can't tell apart: of other weights under the same name."""
    file_staging_bytes: int = 1 << 30
    """Host memory of each worker for chunks on their way: half for stores, half for loads."""
    file_threads: int = 4
    """Threads of each worker, for each direction."""
    file_direct: bool = False
    """Whether to bypass the system's page cache."""
    file_shared: bool = False
    """Whether engines on this machine read each other's chunks."""
    file_engine: int | None = None
    """This engine's number among those that share. None: its number among data-parallel replicas."""


OWN_KEYS: Final = tuple(FileOptions.__dataclass_fields__)


def _folder(key: str, value: object) -> str:
    """A folder's path. Refused: an empty one, or one with ``~``, which would be within the working directory."""
    path: str = of_type(key, value, kind=str)
    if not path:
        raise ConfigError(f"{key}: '' names no folder; it is {_REQUIRED[key]}")
    if "\0" in path:
        raise ConfigError(f"{key}: {path!r}: no folder's name has a NUL in it")
    if path.startswith("~"):
        raise ConfigError(f"{key}: {path!r}: ~ is not expanded here; write the full path")
    return path


def _threads(key: str, value: object) -> int:
    """A number of threads, limited, since the system refuses too many only after seconds."""
    number: int = whole(key, value, least=1)
    if number > _MOST_THREADS:
        raise ConfigError(f"{key}: expected at most {_MOST_THREADS}, got {number}")
    return number


def _engine(key: str, value: object) -> int | None:
    """The number of an engine among those that share."""
    if value is None:
        return None
    number: int = whole(key, value, least=0)
    if number >= MOST_ENGINES:
        raise ConfigError(f"{key}: expected a number below {MOST_ENGINES}, got {number}")
    return number


_MOST_THREADS: Final = 1024

_CHECKS: Final[dict[str, Check]] = SHARED_CHECKS | {
    "file_dir": _folder,
    "file_bytes_to_use": number_of_bytes,
    "file_tag": partial(of_type, kind=str),
    "file_staging_bytes": number_of_bytes,
    "file_threads": _threads,
    "file_direct": partial(of_type, kind=bool),
    "file_shared": partial(of_type, kind=bool),
    "file_engine": _engine,
}

_REQUIRED: Final = {
    "file_dir": "the folder to keep chunks in",
    "file_bytes_to_use": "the room that they may take there, in bytes, over all workers",
}


def read_options(extra_config: Mapping[str, Any]) -> FileOptions:
    """The settings in ``extra_config``. Other keys are the connector's, unless one looks like ours misspelt."""
    refuse_misspelt([*extra_config], OWN_KEYS, where="kv_connector_extra_config")
    for key, meaning in _REQUIRED.items():
        if extra_config.get(key) is None:
            raise ConfigError(f"{key}: not set; it is {meaning}")
    return FileOptions(**checked(extra_config, _CHECKS))
