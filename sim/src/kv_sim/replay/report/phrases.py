"""Words and sizes that the text and the page have alike."""

from collections.abc import Sequence
from typing import Final

from kv_sim.replay.caches.ratios import Ratios
from kv_sim.replay.sizing.capacities import Sizing
from kv_sim.replay.sizing.transfer_config import told_apart
from kv_sim.replay.units import Footprint, counted, show_bytes, show_count

STORED_WHEN_EVICTED: Final = "blocks are stored when the GPU's prefix cache is about to evict them"
DISK_SHARED: Final = "each server loads what the others have on their disks, without storing it again"


def show_seconds(seconds: float) -> str:
    """A time in a readable unit."""
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 999.5 * size:  # three digits would show it as 1e+03
            return f"{seconds / size:,.0f} {unit}"
        if seconds >= 2 * size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.3g} s"


def ratios_shown(ratios: Ratios) -> str:
    """Ratios with their definitions."""
    return f"{ratios.block:.3f} of blocks, {ratios.token:.3f} of tokens, {ratios.full_block:.3f} of full blocks"


def listed(words: Sequence[str]) -> str:
    """a, b and c."""
    *most, last = words
    return f"{', '.join(most)} and {last}" if most else last


def on_each(found: Sizing) -> str:
    """A phrase that each of several servers needs the size, and how much a shared disk needs in all."""
    if found.load is None:
        return ""
    each = f" on each of {found.load.servers} servers"
    together = found.recommended.capacity * found.load.servers
    return f"{each}, {size_shown(found.footprint, together)} in all" if found.disk_shared else each


def engines_told_apart(found: Sizing) -> str | None:
    """What the configuration of each server needs besides, if they share a disk."""
    return None if found.load is None or not found.disk_shared else told_apart(found.load.servers)


def nothing_more(found: Sizing) -> str:
    """The medium of which none is recommended, and the tiers that are there already."""
    disk = found.disk
    there = ["host memory"] if disk is not None and disk.host_blocks else []
    there += ["the GPU's prefix cache"] if found.gpu_blocks else []
    return ("host memory" if disk is None else "disk") + (f" beside {listed(there)}" if there else "")


def size_shown(foot: Footprint, blocks: int) -> str:
    """A size in bytes, if the bytes of a block are known, otherwise in blocks."""
    size = foot.bytes_of(blocks)
    return blocks_shown(blocks) if size is None else show_bytes(size)


def blocks_shown(count: int) -> str:
    """A number of blocks."""
    return counted(count, "block", "blocks")


def gain_shown(points: float) -> str:
    """The gain of more memory in percentage points; some policies lose a little."""
    sign, size = "-" if points < 0 else "+", abs(points)
    return f"{sign}{size:.2g} %" if size < 99.5 else f"{sign}{show_count(size)} %"
