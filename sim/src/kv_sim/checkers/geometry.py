"""GEOMETRY: the ranks of one engine do the same: each moved the same blocks the same way.

Where a rank puts what it stores, and in how many copies it moves it, is its own business: it may have room of
its own that it gives back as its own copies end. What it found nothing for, or gave up by a clock of its own, it
has to say, and then it need not have moved what others did.
"""

from collections import Counter

from kv_sim.engine.engine import Engine
from kv_sim.memory.copies import State
from kv_sim.violation import Invariant


def check_ranks(engine: Engine) -> None:
    """Compare what each rank was told to copy with the first one that could do everything."""
    first: tuple[int, Counter[tuple[str, int]]] | None = None
    for device in engine.devices:
        copies = [*device.copies.ended, *device.copies.running.values()]
        if device.rank in engine.shadow.ranks_that_failed:
            continue
        if any(copy.was_lost or copy.state in (State.FAILED, State.LOST) for copy in copies):
            continue  # what failed on one rank need not have been tried on another
        done = Counter((copy.direction.value, block) for copy in copies for block, _ in copy.pairs)
        if first is None:
            first = device.rank, done
        elif done != first[1]:
            (direction, block), _ = next(iter(((done - first[1]) + (first[1] - done)).items()))
            engine.referee.fail(
                Invariant.GEOMETRY,
                f"ranks {first[0]} and {device.rank} disagree: a {direction} of block {block} "
                "ran on one of them only",
            )
