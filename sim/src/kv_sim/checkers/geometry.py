"""GEOMETRY: the ranks of one engine do the same: each moved the same pages the same way."""

from collections import Counter

from kv_sim.engine.engine import Engine
from kv_sim.memory.copies import State
from kv_sim.violation import Invariant


def check_ranks(engine: Engine) -> None:
    """Compare what each rank was told to copy with rank 0."""
    first: tuple[int, Counter[tuple[str, tuple[tuple[int, int], ...]]]] | None = None
    for device in engine.devices:
        engine_copies = [*device.copies.ended, *device.copies.running.values()]
        done = Counter((copy.direction.value, copy.pairs) for copy in engine_copies if copy.pairs)
        if any(copy.was_lost or copy.state in (State.FAILED, State.LOST) for copy in engine_copies):
            continue  # what failed on one rank need not have been tried on another
        if first is None:
            first = device.rank, done
        elif done != first[1]:
            (direction, pairs), _ = next(iter(((done - first[1]) + (first[1] - done)).items()))
            engine.referee.fail(
                Invariant.GEOMETRY,
                f"ranks {first[0]} and {device.rank} disagree: a {direction} of {pairs} ran on one of them only",
            )
