"""``SharedSlots``: the slots of a worker's own file, and of its neighbours' files, opened at their first use.

If a neighbour has new files, since its home was removed, or its layers are divided otherwise, these are opened.
The old ones are closed when no thread reads them any more; until then they take room on the disk.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock

from kv_offload_cpu import HostMemory
from kv_offload_file.label import Label
from kv_offload_file.sharing.place import MOST_ENGINES, slot_of_neighbour
from kv_offload_file.sharing.slot_borrower import SlotBorrower
from kv_offload_file.slot_file import GoneError, SlotReader
from kv_offload_file.slots import FileSlots


class SharedSlots(FileSlots):
    """Reads and writes places: in ``file``, and those of another engine in the file that ``open_file`` opens."""

    def __init__(self, file: SlotReader, memory: HostMemory, open_file: Callable[[int], SlotBorrower]) -> None:
        super().__init__(file, memory)
        self._open_file = open_file
        self._theirs: dict[int, SlotBorrower] = {}
        self._readers: dict[SlotBorrower, int] = {}
        """File -> how many threads read it; also old files of an owner, while threads read them."""
        self._lock = Lock()

    def read(self, slot: int, label: Label, bay: int) -> None:
        """Read a place's bytes into a bay."""
        found = slot_of_neighbour(slot)
        if found is None:
            super().read(slot, label, bay)
            return
        if found.engine >= MOST_ENGINES:
            raise GoneError(f"chunk {label.key.hex()} of a neighbour's went before it could be borrowed")
        with self._file_of(found.engine) as file:
            file.read(found.slot, label, self._bytes(bay))

    def close(self) -> None:
        """Close all files."""
        super().close()
        for file in [*self._readers]:
            file.close()
        self._theirs.clear()
        self._readers.clear()

    @contextmanager
    def _file_of(self, engine: int) -> Iterator[SlotBorrower]:
        """The current file of an engine, in a context in which it is read."""
        with self._lock:
            file = self._theirs.get(engine)
            if file is None or not file.is_current():
                self._close_what_is_gone()
                file = self._theirs[engine] = self._open_file(engine)
                self._readers[file] = 0
            self._readers[file] += 1
        try:
            yield file
        finally:
            with self._lock:
                self._readers[file] -= 1
                if file not in self._theirs.values():
                    self._close_unless_read(file)

    def _close_what_is_gone(self) -> None:
        """Close the files that their owners have replaced or removed."""
        for engine, file in [*self._theirs.items()]:
            if not file.is_current():
                del self._theirs[engine]
                self._close_unless_read(file)

    def _close_unless_read(self, file: SlotBorrower) -> None:
        if not self._readers[file]:
            del self._readers[file]
            file.close()
