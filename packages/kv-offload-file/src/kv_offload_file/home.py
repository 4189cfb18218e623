"""The home of one engine: the folder of its files, used by one engine at a time, and of one *epoch*.

The process that manages it holds a lock, which the system releases however the process ends. A child that it has
forked would hold it longer, so that no other engine could start there: a child lets go at once.

Engines that share have homes within one folder, and begin with its epoch. An engine that is reset gets an epoch of
its own, so it shares with no engine until it is restarted: it isn't known which engines' weights have changed.
"""

import os
from typing import Final, Protocol
from weakref import WeakSet

from kv_api import ConfigError, OffloadingConfig
from kv_offload_file.epoch import EpochFile
from kv_offload_file.folder import home_folder, meaning_of


class Home(Protocol):
    """The home of a manager."""

    @property
    def epoch(self) -> int:
        """Chunks of other epochs are invalid."""
        ...

    def renew(self) -> None:
        """Begin another epoch."""

    def close(self) -> None:
        """Release the lock. May be repeated."""


_MOST_PID_BYTES: Final = 20

_LOCKED: Final[WeakSet["LockedHome"]] = WeakSet()
"""The homes that this process has locked."""


def _let_go_in_a_child() -> None:
    """In a forked child: its copies of the open files are closed, which leaves the locks to its parent."""
    for home in [*_LOCKED]:
        home.close()


if hasattr(os, "register_at_fork"):  # as where there are locks
    os.register_at_fork(after_in_child=_let_go_in_a_child)


class LockedHome:
    """A folder that this process manages; a ConfigError if another process manages it.

    With the number of an ``engine`` it is within a folder that engines share, which has their epoch.
    """

    def __init__(self, file_dir: str, config: OffloadingConfig, tag: str, engine: int | None = None) -> None:
        self.folder = home_folder(file_dir, config, tag, engine)
        self._engine = engine
        self._fd = -1
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            self._lock()
            _LOCKED.add(self)
            (self.folder / "meaning.json").write_text(meaning_of(config, tag, engine), encoding="utf-8")
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
            import fcntl  # here, so that the classes can be imported on any system
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
            by = f"another engine{self._said_of_its_process()}"
            raise ConfigError(f"file_dir: {self.folder} is in use by {by}; {advice}") from None
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, str(os.getpid()).encode(), 0)

    def _said_of_its_process(self) -> str:
        """Which process has the lock: it may be left of a server that was killed, and be ended by hand."""
        pid = os.pread(self._fd, _MOST_PID_BYTES, 0)
        return f" (process {int(pid)})" if pid.isdigit() else ""
