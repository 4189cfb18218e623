"""``Seat``: what a server has in common with others, and which of them it is.

Names of blocks always, since what one of them has another one may get; and a ``Machine``, if they read each
other's files, or wires, if they pull from each other. Such engines have one time (``together``).
"""

from dataclasses import dataclass

from kv_sim.replay.timed.engine.neighbours import SharedFolders
from kv_sim.replay.timed.engine.request import Names
from kv_sim.replay.timed.lanes import Lanes
from kv_sim.replay.timed.wires import Wires


class Machine:
    """A machine whose servers read each other's files: the disk, and who has what."""

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
