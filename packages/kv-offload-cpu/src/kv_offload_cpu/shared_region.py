"""One file of memory that all workers of an engine map, and that no crash leaves behind.

**Theory of operation.** Locks, which the kernel drops when a process ends however it ends, are the only truth:

* Whoever maps a region holds a shared lock of its file. A file that nobody holds is a leftover.
* The lock of the folder itself is held for whatever looks at, makes or removes files there. So between making a
  file and holding it nobody else looks, and a process that is killed there leaves a file that nobody holds.
* Every start first removes the leftovers of any engine. So does every release, of its own file.
* At the end of the file there is a byte for each worker, set when it attached. The last of them removes the name:
  from then on the memory goes with its last process, and there is nothing to clean up.
* Behind those stands how the worker that made the file cuts it. One that cuts it otherwise is refused, since its
  slots would lie over those of others: the stages of a pipeline hold different layers.

**Invariants.** A region that is attached is held. A worker's byte is set at most once: if it is set already, the
engine's id is used twice on this machine, and the second user is refused.
"""

import fcntl
import hashlib
import mmap
import os
import re
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from kv_api import ConfigError
from kv_offload_cpu.available import Available

PREFIX: Final = "kv-offload-cpu-"
_PATIENCE_SECONDS: Final = 60.0
_PAUSE_SECONDS: Final = 0.01
_WHY: Final = (
    "the workers hold different layers (with pipeline_parallel_size above 1 use host_memory 'private'), their "
    "configurations differ, or two engines have one id"
)


class SharedRegion:
    """``num_bytes`` that worker ``rank`` of ``num_ranks`` maps together with the others of ``engine_id``.

    ``layout`` has the numbers by which it is cut. ``before_create`` is called by the worker that makes the file,
    before it does.
    """

    def __init__(
        self,
        folder: Path,
        engine_id: str,
        rank: int,
        num_ranks: int,
        num_bytes: int,
        layout: Sequence[int] = (),
        before_create: Callable[[], None] = lambda: None,
    ) -> None:
        self.path = folder / _file_name(engine_id)
        self._layout = struct.pack(f"<{len(layout)}q", *layout)
        self._file_bytes = num_bytes + num_ranks + len(self._layout)
        self._released = False
        with _locked(folder):
            for leftover in sorted(folder.glob(f"{PREFIX}*")):
                _remove_unless_held(leftover)
            self._fd = self._open(before_create)
            try:
                self._attach(engine_id, rank, num_ranks, num_bytes)
                self.map = mmap.mmap(self._fd, self._file_bytes)
            except BaseException:
                os.close(self._fd)
                _remove_unless_held(self.path)
                raise

    @staticmethod
    def free_bytes(folder: Path) -> Available:
        """What the file system of ``folder`` still has."""
        found = os.statvfs(folder)
        return Available(found.f_bavail * found.f_frsize, f"free in shared_memory_dir {str(folder)!r}")

    def release(self) -> None:
        """Let go. The last one to do so before all had attached removes the file. May be repeated."""
        if self._released:
            return
        self._released = True
        os.close(self._fd)
        with _locked(self.path.parent):
            _remove_unless_held(self.path)

    def _open(self, before_create: Callable[[], None]) -> int:
        """Open the file, or make it, and hold it."""
        try:
            fd = os.open(self.path, os.O_RDWR)
        except FileNotFoundError:
            before_create()
            fd = self._create()
        fcntl.flock(fd, fcntl.LOCK_SH)
        return fd

    def _create(self) -> int:
        """Make the file; if the system refuses its size, there is none."""
        fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.ftruncate(fd, self._file_bytes)
            os.pwrite(fd, self._layout, self._file_bytes - len(self._layout))
        except BaseException:
            os.close(fd)
            self.path.unlink()
            raise
        return fd

    def _attach(self, engine_id: str, rank: int, num_ranks: int, num_bytes: int) -> None:
        size = os.fstat(self._fd).st_size
        if size != self._file_bytes:
            raise ConfigError(
                f"engine {engine_id!r}: worker {rank} expects {self._file_bytes} bytes of shared memory, but "
                f"{self.path.name} has {size}: {_WHY}"
            )
        cut = os.pread(self._fd, len(self._layout), size - len(self._layout))
        if cut != self._layout:
            ours, theirs = (list(struct.unpack(f"<{len(cut) // 8}q", packed)) for packed in (self._layout, cut))
            raise ConfigError(
                f"engine {engine_id!r}: worker {rank} expects {self.path.name} to be laid out as {ours} "
                "(chunks, blocks of each, bytes of a slot, slots of a row, bytes of a row), but it was created "
                f"as {theirs}: {_WHY}"
            )
        if os.pread(self._fd, 1, num_bytes + rank) != b"\0":
            raise ConfigError(
                f"engine {engine_id!r}: worker {rank} is attached to {self.path.name} already; "
                "another engine with this id is running or has not ended yet"
            )
        os.pwrite(self._fd, b"\1", num_bytes + rank)
        if os.pread(self._fd, num_ranks, num_bytes) == b"\1" * num_ranks:
            self.path.unlink()


def _file_name(engine_id: str) -> str:
    """A readable name, and different for different ids."""
    readable = re.sub(r"[^A-Za-z0-9_.-]", "_", engine_id)[:64]
    return f"{PREFIX}{readable}-{hashlib.sha256(engine_id.encode()).hexdigest()[:12]}.mmap"


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder."""
    try:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise ConfigError(f"shared_memory_dir: {str(folder)!r} can't be opened: {error.strerror}") from error
    try:
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while not _try_lock(fd):
            if time.monotonic() > deadline:
                raise ConfigError(
                    f"shared_memory_dir: {str(folder)!r} has been locked for {_PATIENCE_SECONDS:.0f} s"
                )
            time.sleep(_PAUSE_SECONDS)
        yield
    finally:
        os.close(fd)


def _try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _remove_unless_held(path: Path) -> None:
    """Remove a file whose processes have all ended. Other users' files are theirs."""
    try:
        fd = os.open(path, os.O_RDWR)
    except (FileNotFoundError, PermissionError):
        return
    try:
        if _try_lock(fd):
            path.unlink()
    finally:
        os.close(fd)
