"""The folder of one engine: found by what its bytes mean, used by one engine at a time, and of one *epoch*.

The folder's name has a hash of everything that must be the same for stored bytes to mean the same: the model, how
its KV cache is cut, how it is spread over workers. ``meaning.json`` has it in words.

Whoever manages the folder holds a lock of it, which the system drops when a process ends however it ends.

The epoch is a number that nobody had before. When everything is to be forgotten, since the weights have changed,
there is a new one, and what was stored under the old one means nothing any more, also to whoever comes next.
"""

import hashlib
import json
import os
import re
import secrets
from logging import getLogger
from pathlib import Path
from typing import Any, Final, Protocol

from kv_api import ConfigError, OffloadingConfig
from kv_offload_file.slot_file import rows_path

_log = getLogger("kv_offload_file")

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


def meaning(config: OffloadingConfig, tag: str) -> dict[str, Any]:
    """All that must be the same for stored bytes to mean the same.

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
        "engine": parallel.data_parallel_index,
    }


def claim(folder: Path, config: OffloadingConfig) -> None:
    """See to it that the files of this rank hold its layers. If they have those of another cut, they are emptied.

    It is called only where ranks may have different layers. The manager may have read the files before they are
    emptied. Then it knows chunks that aren't there: their loads fail, and they are forgotten.
    """
    rank = config.parallel.rank
    held = json.dumps([config.worker_kv_bytes_per_block, *(group.layer_names for group in config.groups)])
    path = folder / f"rank-{rank}.layers"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if path.exists() and path.read_text(encoding="utf-8") == held:
            return
        rows_path(folder, rank).unlink(missing_ok=True)
        _have_on_disk(folder)
        path.write_text(held, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"file_dir: {error.strerror}: {error.filename or path}") from error


def home_folder(file_dir: str, config: OffloadingConfig, tag: str) -> Path:
    """Where an engine keeps its chunks."""
    digest = hashlib.sha256(_in_words(config, tag).encode()).hexdigest()[:16]
    name = re.sub(r"[^\w.-]+", "_", config.model.name)[-80:].strip("._") or "model"
    return Path(file_dir) / f"{name}-{digest}"


class LockedHome:
    """A folder that this process manages. Another one that does is a ConfigError."""

    def __init__(self, file_dir: str, config: OffloadingConfig, tag: str) -> None:
        self.folder = home_folder(file_dir, config, tag)
        self._fd = -1
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            self._lock()
            (self.folder / "meaning.json").write_text(_in_words(config, tag), encoding="utf-8")
            self.epoch = self._read_epoch() or self._new_epoch()
        except OSError as error:
            self.close()
            raise ConfigError(f"file_dir: {error.strerror}: {error.filename or self.folder}") from error
        except BaseException:
            self.close()
            raise

    def renew(self) -> None:
        """Begin another epoch. If it can't be written down, neither is the old one any more."""
        try:
            self.epoch = self._new_epoch()
        except OSError as error:
            self.epoch = secrets.randbits(63) | 1
            _log.error("%s: what is stored now will be forgotten at the next start: %s", self.folder, error)
            self._forget_epoch()

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
            raise ConfigError(
                f"file_dir: {self.folder} is in use by another engine; "
                "give each a file_dir or a file_tag of its own"
            ) from None

    def _read_epoch(self) -> int | None:
        try:
            text = (self.folder / "epoch").read_bytes()
        except FileNotFoundError:
            return None
        return int(text, 16) if re.fullmatch(rb"[0-7][0-9a-f]{15}", text) else None

    def _forget_epoch(self) -> None:
        try:
            (self.folder / "epoch").unlink(missing_ok=True)
        except OSError as error:
            _log.error(
                "%s: remove it before the next start, or what is forgotten will be found: %s", self.folder, error
            )

    def _new_epoch(self) -> int:
        """A number that no folder had before, on the disk before anybody hears of it."""
        epoch = secrets.randbits(63) | 1
        written = self.folder / "epoch.new"
        with written.open("w", encoding="ascii") as file:
            file.write(f"{epoch:016x}")
            file.flush()
            os.fsync(file.fileno())
        written.replace(self.folder / "epoch")
        _have_on_disk(self.folder)
        return epoch


def _have_on_disk(folder: Path) -> None:
    """Which files there are in a folder."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _in_words(config: OffloadingConfig, tag: str) -> str:
    return json.dumps(meaning(config, tag), indent=1, sort_keys=True)
