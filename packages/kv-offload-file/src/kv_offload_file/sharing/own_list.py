"""``OwnList``: what an engine tells its neighbours of its chunks, and what they have borrowed of them."""

import os
import secrets
from collections.abc import Collection, Iterable
from logging import getLogger
from pathlib import Path

from kv_api import ConfigError, OffloadKey
from kv_offload_file.sharing.listing import NAME, ListWriter
from kv_offload_file.sharing.loans import lent
from kv_offload_file.sharing.place import Found

_log = getLogger("kv_offload_file")
_NOTHING = OffloadKey(b"")


class OwnList:
    """The listing in the folder of an engine.

    Where it can't be written any more, nothing is told: it is emptied, and the neighbours find nothing here.
    """

    def __init__(self, folder: Path, num_slots: int) -> None:
        self._path = folder / NAME
        self._num_slots = num_slots
        try:
            self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise ConfigError(f"file_dir: {error.strerror}: {self._path}") from error
        self._writer: ListWriter | None = None
        self._epoch = 0

    def begin(self, epoch: int) -> None:
        """Nothing is held, and what will be is of this epoch. It isn't to be read yet."""
        self._epoch = epoch
        try:
            self._writer = ListWriter(self._fd, self._num_slots)
        except OSError as error:
            self._give_up(error)

    def open(self) -> None:
        """Let it be read, now that it has all that is held."""
        if self._writer is None:
            return
        try:
            self._writer.open(self._epoch, secrets.randbits(63) | 1)
        except OSError as error:
            self._give_up(error)

    def holds(self, keys: Collection[OffloadKey], slots: Collection[int]) -> None:
        """These chunks are in these slots, to be read by anybody."""
        self._write([*slots], [*keys])

    def leaves(self, slots: Iterable[int]) -> None:
        """What is in these slots is no more to be read."""
        gone = [*slots]
        self._write(gone, [_NOTHING] * len(gone))

    def uses(self, founds: list[Found]) -> None:
        """These chunks of others were borrowed, which their owners may like to know."""
        if self._writer is None:
            return
        try:
            self._writer.use(founds)
        except OSError as error:
            self._give_up(error)

    def lent(self) -> list[int]:
        """The slots that neighbours read from now."""
        return lent(self._fd, self._num_slots) if self._fd >= 0 else []

    def close(self) -> None:
        """The engine ends. What it has stays as it is, and may be read. May be repeated."""
        self._writer = None
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _write(self, slots: list[int], keys: list[OffloadKey]) -> None:
        if self._writer is None or not slots:
            return
        try:
            self._writer.write(slots, keys)
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        _log.error("%s: from now on no neighbour finds anything here: %s", self._path, error)
        self._writer = None
        try:
            os.ftruncate(self._fd, 0)
        except OSError as worse:
            _log.error("%s: what it says may be wrong: %s", self._path, worse)
