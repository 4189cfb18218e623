"""``FileListing``: tells the neighbours an engine's chunks, and the engine which of them are lent."""

import os
import secrets
from collections.abc import Callable, Collection, Iterable
from logging import getLogger
from pathlib import Path

from kv_api import ConfigError, OffloadKey
from kv_offload_file.sharing.listing import NAME, ListingWriter
from kv_offload_file.sharing.loans import locked
from kv_offload_file.sharing.place import NeighbourSlot

_log = getLogger("kv_offload_file")
_NOTHING = OffloadKey(b"")


class FileListing:
    """The `OwnListing` in the home of an engine.

    If it can't be written any more, it is emptied, and the neighbours find no chunk here.
    """

    def __init__(self, home: Path, num_slots: int) -> None:
        self._path = home / NAME
        self._num_slots = num_slots
        try:
            self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise ConfigError(f"file_dir: {error.strerror}: {self._path}") from error
        self._writer: ListingWriter | None = None
        self._epoch = 0

    def begin(self, epoch: int) -> None:
        self._epoch = epoch
        try:
            self._writer = ListingWriter(self._fd, self._num_slots)
        except OSError as error:
            self._give_up(error)

    def open(self) -> None:
        self._write(lambda writer: writer.open(self._epoch, secrets.randbits(63) | 1))

    def holds(self, keys: Collection[OffloadKey], slots: Collection[int]) -> None:
        self._write(lambda writer: writer.write([*slots], [*keys]))

    def leaves(self, slots: Iterable[int]) -> None:
        gone = [*slots]
        self._write(lambda writer: writer.write(gone, [_NOTHING] * len(gone)))

    def uses(self, borrowed: list[NeighbourSlot]) -> None:
        self._write(lambda writer: writer.use(borrowed))

    def lent(self) -> list[int]:
        if self._fd < 0:
            return []
        try:
            return locked(self._fd, self._num_slots)
        except OSError as error:  # slots that neighbours are reading may be reused: their loads fail
            if self._writer is not None:
                self._give_up(error)
            return []

    def close(self) -> None:
        self._writer = None
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _write(self, what: Callable[[ListingWriter], None]) -> None:
        if self._writer is None:
            return
        try:
            what(self._writer)
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        _log.error("%s: from now on no neighbour finds anything here: %s", self._path, error)
        self._writer = None
        try:
            os.ftruncate(self._fd, 0)
        except OSError as worse:
            _log.error("%s: what it says may be wrong: %s", self._path, worse)
