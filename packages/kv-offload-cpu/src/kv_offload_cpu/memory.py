"""Host memory: the bytes that chunks are in, of one worker alone or mapped by all workers of an engine.

After the rows (see ``sizing``) there is room for the checksums of each slot, which every worker must find where
the bytes are shared. Memory is touched once when it is made: a machine that doesn't have it says so at the start,
and no copy pays for a page fault.
"""

import errno
import mmap
from logging import getLogger
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kv_api import ConfigError
from kv_offload_cpu.available import available_memory
from kv_offload_cpu.shared_region import SharedRegion
from kv_offload_cpu.sizing import HostLayout

_log = getLogger("kv_offload_cpu")

_POPULATE_WRITE = 23
"""Linux's MADV_POPULATE_WRITE, which the module mmap doesn't name."""

_SUM_BYTES = 4


def memory_bytes(layout: HostLayout) -> int:
    """Rows and checksums."""
    return layout.total_bytes + layout.slots_per_row * layout.num_chunks * layout.blocks_per_chunk * _SUM_BYTES


class MappedMemory:
    """Rows as ``layout`` says, in which this worker has ``slot``.

    ``region`` None: memory of this worker alone. ``bytes`` are all rows, and ``sums`` the checksums of this
    worker's slot, one for each chunk and offset. An error names the ``setting`` that asked for so much.
    """

    def __init__(
        self,
        layout: HostLayout,
        slot: int = 0,
        region: SharedRegion | None = None,
        setting: str = "cpu_bytes_to_use",
    ) -> None:
        self.layout = layout
        self.slot = slot
        self._setting = setting
        self._region = region
        if region is None:
            check_available(memory_bytes(layout), "private host memory", setting=setting)
        self._map = _private_map(memory_bytes(layout)) if region is None else region.map
        self._populate()
        everything = np.frombuffer(self._map, np.uint8)
        self.bytes: NDArray[np.uint8] = everything[: layout.total_bytes]
        shape = (layout.slots_per_row, layout.num_chunks, layout.blocks_per_chunk)
        sums = everything[layout.total_bytes : memory_bytes(layout)].view(np.uint32).reshape(shape)
        self.sums: NDArray[np.uint32] = sums[slot]

    @property
    def address(self) -> int:
        """Where the first row begins."""
        return int(self.bytes.ctypes.data)

    def release(self) -> None:
        self.bytes, self.sums = np.empty(0, np.uint8), np.empty((0, 0), np.uint32)
        try:
            self._map.close()
        except BufferError:
            _log.warning("host memory stays mapped: somebody still has a view of it")
        if self._region is not None:
            self._region.release()

    def _populate(self) -> None:
        """Have the system give us the pages of our slots now."""
        layout = self.layout
        if layout.slots_per_row == 1:
            begins, size = [0], layout.total_bytes
        else:
            begins = [row * layout.row_bytes + self.slot * layout.slot_bytes for row in range(layout.num_chunks)]
            size = layout.slot_bytes
        for begin in begins:
            first = begin // mmap.PAGESIZE * mmap.PAGESIZE
            problem = _advise(self._map, _POPULATE_WRITE, first, begin + size - first)
            if problem == errno.EINVAL:  # an older kernel: then pages come at their first use
                return
            if problem is not None:
                self._map.close()
                if self._region is not None:
                    self._region.release()
                raise ConfigError(
                    f"{self._setting}: the system refused memory for {layout.num_chunks} chunks of "
                    f"{layout.slot_bytes} bytes: {errno.errorcode.get(problem, problem)}"
                )


def check_available(needed: int, what: str, folder: Path | None = None, setting: str = "cpu_bytes_to_use") -> None:
    """Refuse more than this machine has left, or the file system of ``folder``."""
    limits = [available_memory()]
    if folder is not None:
        limits.append(SharedRegion.free_bytes(folder))
    for limit in limits:
        if limit is not None and needed > limit.num_bytes:
            raise ConfigError(
                f"{setting}: {what} would take {needed} bytes, {limit.num_bytes} are available ({limit.limit})"
            )


def _private_map(num_bytes: int) -> mmap.mmap:
    """Memory of this process alone, in huge pages where the system has them: shared memory gets none, as a rule.

    A child doesn't inherit it. It would only make each page be copied that is written while the child lives.
    """
    mapped = mmap.mmap(-1, num_bytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for name in ("MADV_HUGEPAGE", "MADV_DONTFORK"):
        if hasattr(mmap, name):
            _advise(mapped, getattr(mmap, name), 0, num_bytes)
    return mapped


def _advise(mapped: mmap.mmap, advice: int, begin: int, size: int) -> int | None:
    """The error number, or None."""
    try:
        mapped.madvise(advice, begin, size)
    except OSError as error:
        return error.errno
    return None
