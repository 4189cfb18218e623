"""GEOMETRY: all ranks of an engine moved the same blocks in the same directions.

Each rank may choose the slots of its chunks and the number of copies, since it may manage its own memory. A rank
that reports a failed load or copy (nothing to load, a timeout) needn't have moved the same blocks as the others;
nor need the same rank of another engine that pulls from it.
"""

from collections import Counter

from kv_sim.engine.engine import Engine
from kv_sim.memory.copy import Copy, State
from kv_sim.memory.device import Device
from kv_sim.violation import Invariant


def check_ranks(engine: Engine) -> None:
    """Compare the copies of each rank with those of the first one on which none failed."""
    first: tuple[int, Counter[tuple[str, int]]] | None = None
    for device in engine.devices:
        if any(map(_has_failed, (device, *device.others))):
            continue  # what failed on one rank need not have been tried on another
        done = Counter((copy.direction.value, block) for copy in _copies_of(device) for block, _ in copy.pairs)
        if first is None:
            first = device.rank, done
        elif done != first[1]:
            (direction, block), _ = next(iter(((done - first[1]) + (first[1] - done)).items()))
            engine.referee.fail(
                Invariant.GEOMETRY,
                f"ranks {first[0]} and {device.rank} disagree: a {direction} of block {block} "
                "ran on one of them only",
            )


def _has_failed(device: Device) -> bool:
    """Whether a load failed there, or any copy did."""
    if device.rank in device.shadow.ranks_that_failed:
        return True
    return any(copy.was_lost or copy.state in (State.FAILED, State.LOST) for copy in _copies_of(device))


def _copies_of(device: Device) -> list[Copy]:
    return [*device.copies.ended, *device.copies.running.values()]
