"""The chunks of one rank: a file with their bytes, and one with a row for each slot that names its chunk.

The worker that stores them has a ``SlotFile``. If all workers hold the same bytes, the others only read them, by a
``SlotReader``.

**Which files are trusted.** Whatever a process wrote is there for the next one, however the process ended, since
the operating system has it; bytes are lost only when the machine goes down. So the first row says in which boot of
the machine the files were last open, and whether they were closed after all bytes had reached the disk. Files that
are neither from this boot nor were closed are emptied. A slot that is damaged by the disk is detected when it is
read: see ``label``.
"""

import errno
import os
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from logging import getLogger
from pathlib import Path
from typing import Final, NamedTuple

from kv_api import ConfigError, KVError
from kv_offload_file.label import ROW_BYTES, Label, Row, pack_row, unpack_row

_log = getLogger("kv_offload_file")

ALIGNMENT: Final = 4096
"""The alignment of slots, in the file and in memory, which writes past the page cache need."""

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_HEADER: Final = struct.Struct("<8sQB36s")
_MAGIC: Final = b"KVSLOTS1"
_NOTHING: Final = bytes(ROW_BYTES)
_SUM: Final = struct.Struct("<I")


class DamagedError(KVError):
    """A slot doesn't hold the requested chunk."""


class GoneError(DamagedError):
    """A neighbour's slot holds another chunk by now."""


class Header(NamedTuple):
    """The first row: how large slots are, whether the files were closed, and on which start of the machine."""

    slot_bytes: int
    is_closed: bool
    boot_id: str

    @property
    def is_trusted(self) -> bool:
        """Whether all written bytes are certain to be there."""
        return self.is_closed or (self.boot_id == this_boot() != "")


def this_boot() -> str:
    """The system's id of the current boot; empty if it has none."""
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return ""


class SlotReader:
    """``num_slots`` slots of ``slot_bytes`` of rank ``rank``, in two files of ``folder``, to be read.

    The worker that owns the files may create them later. Several threads may read slots at once.
    """

    def __init__(self, folder: Path, rank: int, num_slots: int, slot_bytes: int, *, direct: bool = False) -> None:
        assert slot_bytes % ALIGNMENT == 0, f"slots of {slot_bytes} bytes are not aligned to {ALIGNMENT}"
        self.path = slots_path(folder, rank)
        self.num_slots = num_slots
        self.slot_bytes = slot_bytes
        self._rank = rank
        self._slots = self._rows = -1
        try:
            self._open(rows_path(folder, rank), direct=direct)
            self._begin()
        except OSError as error:
            self._close_both()
            raise ConfigError(f"file_dir: {error.strerror}: {error.filename or self.path}") from error
        except BaseException:
            self._close_both()
            raise

    def read(self, slot: int, label: Label, into: memoryview) -> None:
        """Read a slot; `DamagedError` if it doesn't hold the chunk of the label, of the label's epoch."""
        with self._named():
            self._read(slot, label, into)

    def _read(self, slot: int, label: Label, into: memoryview) -> None:
        row = self._row(slot)
        where = f"slot {slot} of {self.path}"
        if row is None or row.label[:2] != label[:2]:
            held = "nothing readable" if row is None else f"chunk {row.label.key.hex()}"
            raise DamagedError(f"{where} holds {held}, not chunk {label.key.hex()} of this epoch")
        _read_all(self._slots, into, slot * self.slot_bytes)
        if zlib.crc32(into) != row.data_sum:
            self._found_damaged(slot)
            raise DamagedError(f"{where} has other bytes than were stored of chunk {label.key.hex()}")

    def close(self) -> None:
        """Close both. May be repeated."""
        self._close_both()

    # Steps of the above

    def _open(self, rows: Path, *, direct: bool) -> None:
        """Open both, or create them."""
        rows.parent.mkdir(parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        self._rows = os.open(rows, flags, 0o600)
        self._slots = open_slots(self.path, flags, direct=direct)

    def _row(self, slot: int) -> Row | None:
        return unpack_row(os.pread(self._rows, ROW_BYTES, (1 + self._check(slot)) * ROW_BYTES))

    def _found_damaged(self, slot: int) -> None:
        """Empty the row of a damaged slot."""
        self._write_row(slot, _NOTHING)

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Add the file's path to errors of the system."""
        try:
            yield
        except OSError as error:
            error.filename = str(self.path)
            raise

    def _close_both(self) -> None:
        for fd in (self._slots, self._rows):
            if fd >= 0:
                os.close(fd)
        self._slots = self._rows = -1

    def _begin(self) -> None:
        """Called when both files are open."""

    def _write_row(self, slot: int, row: bytes) -> None:
        _write_all(self._rows, memoryview(row), (1 + slot) * ROW_BYTES)

    def _check(self, slot: int) -> int:
        if not 0 <= slot < self.num_slots:
            raise KVError(f"slot {slot} of {self.path}: there are 0 to {self.num_slots - 1}")
        return slot


class SlotFile(SlotReader):
    """The slots of this worker, perhaps with earlier chunks. Different slots may be read and written at once."""

    def write(self, slot: int, label: Label, data: memoryview) -> None:
        """Write a slot. Its row is empty meanwhile, and stays so if the write fails."""
        row = pack_row(Row(label, zlib.crc32(data)))
        with self._named():
            self._write_row(self._check(slot), _NOTHING)
            _write_all(self._slots, data, slot * self.slot_bytes)
            self._write_row(slot, row)

    def close(self) -> None:
        """Write all bytes to the disk; then, if that succeeded, mark the files as closed. May be repeated."""
        if self._rows < 0:
            return
        try:
            os.fsync(self._slots)
            os.fsync(self._rows)
            self._write_header(is_closed=True)
        except OSError as error:
            _log.error("%s: if the machine goes down, what it holds will be forgotten: %s", self.path, error)
        finally:
            self._close_both()

    # Steps of the above

    def _begin(self) -> None:
        self._check_room()
        before = _unpack_header(os.pread(self._rows, ROW_BYTES, 0))
        is_new = os.fstat(self._slots).st_size == 0
        if is_new or before is None or before.slot_bytes != self.slot_bytes or not before.is_trusted:
            os.ftruncate(self._rows, 0)
        # Before any change: if the machine goes down, the files mustn't be marked as closed.
        self._write_header(is_closed=False)
        os.ftruncate(self._rows, (1 + self.num_slots) * ROW_BYTES)
        os.ftruncate(self._slots, self.num_slots * self.slot_bytes)

    def _check_room(self) -> None:
        """Refuse files for which the file system has no room, for all local ranks, now rather than at each store.

        Nothing is changed before: an engine with the earlier size still finds its chunks.
        """
        size = self.num_slots * self.slot_bytes
        there = [path.stat().st_blocks * 512 for path in self.path.parent.glob("rank-*.slots")]
        needed = sum(max(0, size - taken) for taken in there)
        found = os.fstatvfs(self._slots)
        free = found.f_bavail * found.f_frsize
        if needed > free:
            raise ConfigError(
                f"file_bytes_to_use: {self.path} and its like (there are {len(there)}) would grow by {needed} "
                f"bytes, the file system has {free} free"
            )

    def _write_header(self, *, is_closed: bool) -> None:
        body = _HEADER.pack(_MAGIC, self.slot_bytes, is_closed, this_boot().encode())
        body = body.ljust(ROW_BYTES - _SUM.size, b"\0")
        _write_all(self._rows, memoryview(_SUM.pack(zlib.crc32(body)) + body), 0)
        os.fsync(self._rows)


def rows_path(folder: Path, rank: int) -> Path:
    """The file with the rows of a rank."""
    return folder / f"rank-{rank}.rows"


def slots_path(folder: Path, rank: int) -> Path:
    """The file with the bytes of a rank."""
    return folder / f"rank-{rank}.slots"


def read_rows(folder: Path, rank: int, num_slots: int) -> Iterator[tuple[int, Row]]:
    """The slots of a rank with a chunk, and their rows. None if its files are missing or not trusted."""
    try:
        data = rows_path(folder, rank).read_bytes()
        slots_path(folder, rank).stat()
    except FileNotFoundError:
        return
    except OSError as error:
        raise ConfigError(f"file_dir: {error.strerror}: {error.filename}") from error
    header = _unpack_header(data[:ROW_BYTES])
    if header is None or not header.is_trusted:
        return
    for slot in range(min(num_slots, len(data) // ROW_BYTES - 1)):
        row = unpack_row(data[(1 + slot) * ROW_BYTES : (2 + slot) * ROW_BYTES])
        if row is not None:
            yield slot, row


def _unpack_header(data: bytes) -> Header | None:
    if len(data) != ROW_BYTES or _SUM.unpack_from(data)[0] != zlib.crc32(data[_SUM.size :]):
        return None
    magic, slot_bytes, is_closed, boot_id = _HEADER.unpack_from(data, _SUM.size)
    return Header(slot_bytes, bool(is_closed), boot_id.rstrip(b"\0").decode()) if magic == _MAGIC else None


def open_slots(path: Path, flags: int, *, direct: bool) -> int:
    """Open a file of slots; if ``direct``, past the page cache."""
    if not direct:
        return os.open(path, flags, 0o600)
    try:
        return os.open(path, flags | os.O_DIRECT, 0o600)
    except (OSError, AttributeError) as error:
        if isinstance(error, OSError) and error.errno != errno.EINVAL:
            raise
        raise ConfigError(f"file_direct: the file system of {path} has a page cache in between") from error


def _write_all(fd: int, data: memoryview, begin: int) -> None:
    done = 0
    while done < len(data):
        done += os.pwrite(fd, data[done:], begin + done)


def _read_all(fd: int, into: memoryview, begin: int) -> None:
    done = 0
    while done < len(into):
        count = os.preadv(fd, [into[done:]], begin + done)
        if not count:
            raise OSError(errno.EIO, f"the file ends at {begin + done}")
        done += count
