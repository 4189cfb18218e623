"""The slots of a file for the copy engine: read into bays of staging memory, and written from them."""

from kv_offload_cpu import HostMemory
from kv_offload_cpu.memory import MappedMemory
from kv_offload_file.label import Label
from kv_offload_file.slot_file import SlotFile, SlotReader


class FileSlots:
    """The slots of ``file``, each as large as a bay of ``memory``; a read-only file can only be read."""

    def __init__(self, file: SlotReader, memory: HostMemory) -> None:
        assert isinstance(memory, MappedMemory), (
            f"{type(memory).__name__}: whoever makes other memory makes the slots"
        )
        self._file = file
        self._memory = memory

    def write(self, slot: int, label: Label, bay: int) -> None:
        """Write a bay's bytes to a slot."""
        assert isinstance(self._file, SlotFile), f"{self._file.path} is another worker's"
        self._file.write(slot, label, self._bytes(bay))

    def read(self, slot: int, label: Label, bay: int) -> None:
        """Read a slot's bytes into a bay."""
        self._file.read(slot, label, self._bytes(bay))

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _bytes(self, bay: int) -> memoryview:
        size = self._file.slot_bytes
        return self._memory.bytes[bay * size : (bay + 1) * size].data
