"""The folder of one engine: found by what its bytes mean, used by one engine at a time, and of one *epoch*.

The folder's name has a hash of everything that must be the same for stored bytes to mean the same: the model, how
its KV cache is cut, how it is spread over workers. ``meaning.json`` has it in words.

Whoever manages the folder holds a lock of it, which the system drops when a process ends however it ends.

Engines that share a folder have homes within it, and begin with its epoch. Who is to forget everything goes on
with an epoch that no other engine has, so it shares with nobody until it is started again: nobody knows whose
weights have changed.
"""

import hashlib
import json
import os
import re
from pathlib import Path
from typing import Any, Final, Protocol

from kv_api import ConfigError, OffloadingConfig
from kv_offload_file.epoch import EpochFile, have_on_disk
from kv_offload_file.sharing.place import home_of
from kv_offload_file.slot_file import rows_path

_FORMAT: Final = 2


class Home(Protocol):
    """What a manager needs of where its medium lives."""

    @property
    def epoch(self) -> int:
        """Chunks of another one are forgotten."""
        ...

    def renew(self) -> None:
        """Begin another epoch."""

    def close(self) -> None:
        """Let others in. May be repeated."""


def meaning(config: OffloadingConfig, tag: str, *, is_shared: bool = False) -> dict[str, Any]:
    """All that must be the same for stored bytes to mean the same, and whose they are if they aren't shared.

    Of a pipeline it is what all ranks are told alike. What each holds stands beside its files: see ``claim``.
    """
    parallel = config.parallel
    is_alike = parallel.pp_size == 1
    return {
        "format": _FORMAT,
        "tag": tag,
        "model": config.model.name,
        "dtype": config.model.dtype,
        "bytes_per_block": config.worker_kv_bytes_per_block if is_alike else None,
        "blocks_per_chunk": config.cache.blocks_per_chunk,
        "tokens_per_hash": config.cache.tokens_per_hash,
        "groups": [
            [
                group.tokens_per_block,
                group.sliding_window_size_in_chunks,
                *(group.layer_names if is_alike else ()),
            ]
            for group in config.groups
        ],
        "layout": [config.kv_cache_layout, config.canonical_layout],
        "parallel": [
            parallel.world_size,
            parallel.tp_size,
            parallel.pp_size,
            parallel.pcp_size,
            parallel.dcp_size,
            # Left out where it means nothing: folders keep their names.
            *([parallel.cp_kv_cache_interleave_size] if parallel.dcp_size > 1 else []),
        ],
        "engine": "any" if is_shared else parallel.data_parallel_index,
    }


def claim(folder: Path, config: OffloadingConfig) -> None:
    """See to it that the files of this rank hold its layers. If they have those of another cut, they are emptied.

    It is called only where ranks may have different layers. The manager may have read the files before they are
    emptied. Then it knows chunks that aren't there: their loads fail, and they are forgotten.
    """
    rank = config.parallel.rank
    path = _layers_path(folder, rank)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if has_same_layers(folder, config):
            return
        rows_path(folder, rank).unlink(missing_ok=True)
        have_on_disk(folder)
        path.write_text(_layers(config), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"file_dir: {error.strerror}: {error.filename or path}") from error


def has_same_layers(folder: Path, config: OffloadingConfig) -> bool:
    """Whether the files of this rank in a folder hold its layers, as they say. Of a pipeline."""
    path = _layers_path(folder, config.parallel.rank)
    return path.exists() and path.read_text(encoding="utf-8") == _layers(config)


def home_folder(file_dir: str, config: OffloadingConfig, tag: str, *, is_shared: bool = False) -> Path:
    """Where an engine keeps its chunks; if it is shared, where all engines do that mean the same by theirs."""
    digest = hashlib.sha256(_in_words(config, tag, is_shared=is_shared).encode()).hexdigest()[:16]
    name = re.sub(r"[^\w.-]+", "_", config.model.name)[-80:].strip("._") or "model"
    return Path(file_dir) / f"{name}-{digest}"


def folder_of_engine(file_dir: str, config: OffloadingConfig, tag: str, engine: int | None) -> Path:
    """Where the files of an engine are: ``engine`` is its number among those that share a folder, if it does."""
    if engine is None:
        return home_folder(file_dir, config, tag)
    return home_of(home_folder(file_dir, config, tag, is_shared=True), engine)


class LockedHome:
    """A folder that this process manages. Another one that does is a ConfigError.

    With the number of an ``engine`` it is a folder within one that engines share, which has their epoch.
    """

    def __init__(self, file_dir: str, config: OffloadingConfig, tag: str, engine: int | None = None) -> None:
        self.folder = folder_of_engine(file_dir, config, tag, engine)
        self._engine = engine
        self._fd = -1
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            self._lock()
            words = _in_words(config, tag, is_shared=engine is not None)
            (self.folder / "meaning.json").write_text(words, encoding="utf-8")
            is_shared = engine is not None
            self._epochs = EpochFile(self.folder.parent if is_shared else self.folder, in_common=is_shared)
            self.epoch = self._epochs.begin()
        except OSError as error:
            self.close()
            raise ConfigError(f"file_dir: {error.strerror}: {error.filename or self.folder}") from error
        except BaseException:
            self.close()
            raise

    def renew(self) -> None:
        """Begin another epoch."""
        self.epoch = self._epochs.renew()

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _lock(self) -> None:
        try:
            import fcntl  # what only looks at our classes runs anywhere
        except ImportError as error:
            raise ConfigError(
                "file_dir: this system has no locks of files (fcntl), and two engines in one folder destroy it"
            ) from error
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if self._engine is None:
                advice = "give each a file_dir or a file_tag of its own, or let them share (file_shared)"
            else:
                advice = f"each of those that share has a number of its own (file_engine, here {self._engine})"
            raise ConfigError(f"file_dir: {self.folder} is in use by another engine; {advice}") from None


def _layers_path(folder: Path, rank: int) -> Path:
    return folder / f"rank-{rank}.layers"


def _layers(config: OffloadingConfig) -> str:
    return json.dumps([config.worker_kv_bytes_per_block, *(group.layer_names for group in config.groups)])


def _in_words(config: OffloadingConfig, tag: str, *, is_shared: bool = False) -> str:
    return json.dumps(meaning(config, tag, is_shared=is_shared), indent=1, sort_keys=True)
