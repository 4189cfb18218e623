"""``Seat``: a server's number among several servers, and what it shares with them.

They always share the names of blocks, since one server may get blocks of another. If they read each other's files
they share a ``Machine``; if they pull from each other, wires. Such engines run in one common time (``together``).
"""

from dataclasses import dataclass

from kv_sim.replay.timed.durations.lanes import Lanes
from kv_sim.replay.timed.durations.wires import Wires
from kv_sim.replay.timed.engine.neighbours import SharedFolders
from kv_sim.replay.timed.engine.request import Names


class Machine:
    """A machine whose servers read each other's files: its disk, and which server has which file."""

    def __init__(self) -> None:
        self.disk = Lanes()
        self.folders = SharedFolders()


@dataclass(frozen=True)
class Seat:
    """The place of one server."""

    number: int
    names: Names
    machine: Machine | None = None
    wires: Wires | None = None
