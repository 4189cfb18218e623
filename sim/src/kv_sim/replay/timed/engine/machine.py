"""``Machine``: what servers have in common that read each other's files: the disk, who has what, and names.

Servers take turns in the order of time (``take_turns``), so that each finds what the others had stored by then,
and waits at the disk behind what they had begun by then.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from heapq import heapify, heappop, heapreplace

from kv_sim.replay.timed.engine.neighbours import SharedFolders
from kv_sim.replay.timed.engine.request import Names
from kv_sim.replay.timed.lanes import Lanes


class Machine:
    """The machine of ``servers`` servers."""

    def __init__(self, servers: int, parts: int) -> None:
        self.disk = Lanes()
        self.folders = SharedFolders()
        self.names = Names(parts)
        self.seats = [Seat(self, number) for number in range(servers)]


@dataclass(frozen=True)
class Seat:
    """The place of one server."""

    machine: Machine
    number: int

    def number_of(self, index: int) -> int:
        """The number of this server's ``index``-th request among those of all."""
        return index * len(self.machine.seats) + self.number


def take_turns(servers: Iterable[Iterator[int]]) -> None:
    """Let them all go to their ends. Whoever is earliest goes on; each says up to when it has got."""
    ahead = [(0, number, server) for number, server in enumerate(servers)]
    heapify(ahead)
    while ahead:
        _, number, server = ahead[0]
        moment = next(server, None)
        if moment is None:
            heappop(ahead)
        else:
            heapreplace(ahead, (moment, number, server))
