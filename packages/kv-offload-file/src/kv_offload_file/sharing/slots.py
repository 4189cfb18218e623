"""``SharedSlots``: the slots of a worker's own file, and its neighbours', opened when they are asked for."""

from collections.abc import Callable
from threading import Lock

from kv_offload_cpu import HostMemory
from kv_offload_file.bays import FileSlots
from kv_offload_file.label import Label
from kv_offload_file.sharing.place import MOST_ENGINES, slot_of_neighbour
from kv_offload_file.sharing.slot_borrower import SlotBorrower
from kv_offload_file.slot_file import DamagedError, GoneError, SlotReader


class SharedSlots(FileSlots):
    """Places, of which those that aren't in ``file`` are read where ``open_file`` opens that of another engine."""

    def __init__(self, file: SlotReader, memory: HostMemory, open_file: Callable[[int], SlotBorrower]) -> None:
        super().__init__(file, memory)
        self._open_file = open_file
        self._theirs: dict[int, SlotBorrower] = {}
        self._replaced: list[SlotBorrower] = []
        """Files of which their owners have others by now. Threads may still read them."""
        self._opening = Lock()

    def read(self, slot: int, label: Label, bay: int) -> None:
        """Fill a bay with what is in a place."""
        found = slot_of_neighbour(slot)
        if found is None:
            super().read(slot, label, bay)
            return
        if found.engine >= MOST_ENGINES:
            raise GoneError(f"chunk {label.key.hex()} of a neighbour's went before it could be borrowed")
        file = self._file_of(found.engine)
        try:
            file.read(found.slot, label, self._bytes(bay))
        except DamagedError:
            self._forget_if_replaced(found.engine, file)
            raise

    def close(self) -> None:
        """Close all files."""
        super().close()
        for file in [*self._theirs.values(), *self._replaced]:
            file.close()
        self._theirs.clear()
        self._replaced.clear()

    def _file_of(self, engine: int) -> SlotBorrower:
        with self._opening:
            if engine not in self._theirs:
                self._theirs[engine] = self._open_file(engine)
            return self._theirs[engine]

    def _forget_if_replaced(self, engine: int, file: SlotBorrower) -> None:
        """Where the owner has begun other files the next read opens those."""
        with self._opening:
            if self._theirs.get(engine) is file and not file.is_current():
                self._replaced.append(self._theirs.pop(engine))
