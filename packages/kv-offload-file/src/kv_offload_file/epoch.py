"""``EpochFile``: the epoch of a folder; only chunks that were stored under it are valid.

An epoch is a number that was never used before. A reset (for example since the weights have changed) begins a new
epoch. Chunks that were stored under the old one are invalid, also for the next engine that uses the folder.
"""

import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from logging import getLogger
from pathlib import Path

_log = getLogger("kv_offload_file")


class EpochFile:
    """The epoch of ``folder``, in a file.

    If engines have it ``in_common``, a lock makes them take turns, and a new epoch applies to engines that start
    later. The engine that was reset gets an epoch of its own, since the others may still have the old weights.
    """

    def __init__(self, folder: Path, *, in_common: bool = False) -> None:
        self._folder = folder
        self._in_common = in_common

    def begin(self) -> int:
        """The folder's epoch; a new one for a new folder. Raises the system's errors."""
        with self._alone():
            return self._read() or self._write_new()

    def renew(self) -> int:
        """Begin a new epoch. If it can't be written, the old one is removed as well."""
        try:
            with self._alone():
                epoch = self._write_new()
        except OSError as error:
            _log.error("%s: what is stored now will be forgotten at the next start: %s", self._folder, error)
            self._forget()
            return _new()
        return _new() if self._in_common else epoch

    def _read(self) -> int | None:
        try:
            text = (self._folder / "epoch").read_bytes()
        except FileNotFoundError:
            return None
        return int(text, 16) if re.fullmatch(rb"[0-7][0-9a-f]{15}", text) else None

    def _write_new(self) -> int:
        """Write the epoch to the disk before it is used."""
        epoch = _new()
        written = self._folder / "epoch.new"
        with written.open("w", encoding="ascii") as file:
            file.write(f"{epoch:016x}")
            file.flush()
            os.fsync(file.fileno())
        written.replace(self._folder / "epoch")
        have_on_disk(self._folder)
        return epoch

    def _forget(self) -> None:
        try:
            (self._folder / "epoch").unlink(missing_ok=True)
        except OSError as error:
            _log.error(
                "%s: remove it before the next start, or what is forgotten will be found: %s", self._folder, error
            )

    @contextmanager
    def _alone(self) -> Iterator[None]:
        if not self._in_common:
            yield
            return
        import fcntl

        fd = os.open(self._folder, os.O_RDONLY)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)


def have_on_disk(folder: Path) -> None:
    """The files of a folder."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _new() -> int:
    return secrets.randbits(63) | 1
