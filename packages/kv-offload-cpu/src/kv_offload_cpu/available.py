"""How much memory this process may still take: what the machine has left, or less if a container has a limit."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple


class Available(NamedTuple):
    """Bytes, and whose limit that is."""

    num_bytes: int
    limit: str


def available_memory(root: Path = Path("/")) -> Available | None:
    """The tightest limit, as the files under ``root`` have it. None: the system tells nothing."""
    return min(_limits(root), default=None)


def _limits(root: Path) -> Iterator[Available]:
    for line in _lines(root / "proc/meminfo"):
        if line.startswith("MemAvailable:"):
            yield Available(int(line.split()[1]) * 1024, "MemAvailable")
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        if not controllers:
            yield from _cgroup(root / "sys/fs/cgroup", path, "memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            top, files = root / "sys/fs/cgroup/memory", ("memory.limit_in_bytes", "memory.usage_in_bytes")
            yield from _cgroup(top, path, *files, "total_inactive_file")


def _cgroup(top: Path, path: str, limit_name: str, usage_name: str, reclaimable: str) -> Iterator[Available]:
    """The limits of a control group and of all that it is in. Inside a container its path may not exist."""
    inner = top / path.strip("/")
    for folder in [inner, *inner.parents] if inner.is_dir() else [top]:
        if not folder.is_relative_to(top):
            break
        [limit] = _lines(folder / limit_name) or ["max"]
        [usage] = _lines(folder / usage_name) or ["0"]
        if limit == "max" or int(limit) >= 1 << 60:
            continue
        cached = [line.split()[1] for line in _lines(folder / "memory.stat") if line.startswith(f"{reclaimable} ")]
        yield Available(max(0, int(limit) - int(usage) + sum(map(int, cached))), f"the cgroup's {limit_name}")


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text().splitlines()
    except OSError:
        return []
