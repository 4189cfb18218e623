"""``SlotBorrower``: the slots of another engine's worker, as the worker of the same rank here reads them."""

import os
from pathlib import Path

from kv_offload_file.label import Label
from kv_offload_file.slot_file import DamagedError, GoneError, SlotReader, open_slots, rows_path


class SlotBorrower(SlotReader):
    """The slots of another engine's worker, if its files exist. They are never changed."""

    def is_current(self) -> bool:
        """Whether the open files are those that their owner has now."""
        there = (self._rows, rows_path(self.path.parent, self._rank)), (self._slots, self.path)
        try:
            return all(os.path.samestat(os.fstat(fd), os.stat(path)) for fd, path in there)
        except OSError:  # the home may be gone or replaced
            return False

    def read(self, slot: int, label: Label, into: memoryview) -> None:
        try:
            super().read(slot, label, into)
        except DamagedError as error:
            row = self._row(slot)
            if row is not None and row.label[:2] == label[:2]:
                raise
            raise GoneError(f"{error}, which it did when it was borrowed") from None

    # Steps of the above

    def _open(self, rows: Path, *, direct: bool) -> None:
        flags = os.O_RDONLY | os.O_CLOEXEC
        self._rows = os.open(rows, flags)
        self._slots = open_slots(self.path, flags, direct=direct)

    def _found_damaged(self, slot: int) -> None:
        """Leave the row as it is: the slot's owner may be writing the slot."""
