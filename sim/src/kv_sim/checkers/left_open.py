"""The operating system's resources in use: open descriptors, child processes, segments of shared memory.

``Holdings`` is one look at it, from ``/proc`` and ``/dev/shm``. Where these are missing, as they are on anything
but Linux, nothing is checked. The difference of two looks was opened in between: by a
connector, or by Python, a library or the testbed at its first use. ``ending`` finds out which.

Segments of shared memory belong to the whole machine. This process's are those that it has open or mapped.
"""

import os
import re
from collections import Counter
from collections.abc import Iterator, Set
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

DESCRIPTORS: Final = Path("/proc/self/fd")
TASKS: Final = Path("/proc/self/task")
PROCESSES: Final = Path("/proc")
SHARED_MEMORY: Final = Path("/dev/shm")


Segment: TypeAlias = tuple[str, int]
"""A file in shared memory: its name, and its number, since a name may come back."""


@dataclass(frozen=True)
class Holdings:
    """What this process has in use."""

    descriptors: frozenset[tuple[int, str]]
    """Number and target of each."""
    children: frozenset[int]
    segments: frozenset[Segment]
    """All segments, of any process."""

    @classmethod
    def now(cls) -> "Holdings":
        """What this process has in use at this moment."""
        return cls(frozenset(_descriptors()), frozenset(_children()), frozenset(_segments()))

    def since(self, before: "Holdings", made: Set[Segment] = frozenset()) -> Counter[str]:
        """Resources taken since ``before`` and still in use, in words, with their counts.

        ``made``: the segments that this process had then.
        """
        names = [_anonymous(target) for _, target in self.descriptors - before.descriptors]
        names += [f"process {_command(child)}" for child in self.children_since(before)]
        names += {f"{SHARED_MEMORY}/{name}" for name, _ in self.segments & made}.difference(names)
        return Counter(names)

    def children_since(self, before: "Holdings") -> list[int]:
        """Processes that were started since ``before`` and still run."""
        return [child for child in sorted(self.children - before.children) if _is_alive(child)]

    def segments_since(self, before: "Holdings") -> set[Segment]:
        """Segments created since ``before`` that only this process has."""
        new = {segment for segment in self.segments - before.segments if _is_ours(segment)}
        if not new:
            return set()  # a look at all processes takes its time
        others = (process for process in _processes() if process != os.getpid())
        mine = _held_by(os.getpid(), new)
        return mine.difference(*(_held_by(process, mine) for process in others)) if mine else mine


def _descriptors() -> Iterator[tuple[int, str]]:
    with suppress(OSError):
        for number in os.listdir(DESCRIPTORS):
            with suppress(OSError):  # that of the listing is closed by now
                yield int(number), os.readlink(DESCRIPTORS / number)


def _children() -> Iterator[int]:
    with suppress(OSError):
        for task in os.listdir(TASKS):
            with suppress(OSError):  # a thread that has ended
                yield from map(int, (TASKS / task / "children").read_text().split())


def _segments() -> Iterator[Segment]:
    """The folder alone is read: there may be thousands, and a look at each takes its time."""
    with suppress(OSError), os.scandir(SHARED_MEMORY) as entries:
        for entry in entries:
            yield entry.name, entry.inode()


def _is_ours(segment: Segment) -> bool:
    """Whether it is this user's."""
    with suppress(OSError):
        return (SHARED_MEMORY / segment[0]).lstat().st_uid == os.geteuid()
    return False


def _processes() -> Iterator[int]:
    with suppress(OSError):
        yield from (int(name) for name in os.listdir(PROCESSES) if name.isdigit())


def _held_by(process: int, segments: Set[Segment]) -> set[Segment]:
    """Which of these segments a process has open or mapped, as far as one may look."""
    paths: set[str] = set()
    folder = PROCESSES / str(process)
    with suppress(OSError):
        lines = (folder / "maps").read_text(errors="replace").splitlines()
        paths.update(f"/{line.partition('/')[2]}" for line in lines)
    with suppress(OSError):
        for number in os.listdir(folder / "fd"):
            with suppress(OSError):
                paths.add(os.readlink(folder / "fd" / number))
    return {segment for segment in segments if f"{SHARED_MEMORY}/{segment[0]}" in paths}


def _is_alive(process: int) -> bool:
    """Whether a process runs. One that has ended without being waited for doesn't."""
    with suppress(OSError):
        return (PROCESSES / str(process) / "stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False


def _command(process: int) -> str:
    with suppress(OSError):
        return (PROCESSES / str(process) / "comm").read_text().strip()
    return "…"


def _anonymous(target: str) -> str:
    """``socket:[12345]`` and ``pipe:[12345]`` have a number of this run; a path stays as it is."""
    return target if target.startswith("/") else re.sub(r"\[\d+\]", "[…]", target)
