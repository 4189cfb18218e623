"""Several engines in one time: whoever is earliest takes the next turn.

What one engine does may bring something to another one: a request that it has begun, a copy. It does so at the
time of its own clock or later. So an engine may go on by itself up to the earliest of the others' clocks, and not
beyond; of two that are at the same time the first one goes on.
"""

from collections.abc import Sequence

from kv_sim.replay.timed.engine.arrivals import NEVER
from kv_sim.replay.timed.engine.drive import MOST_EMPTY_STEPS, Drive


def run_together(drives: Sequence[Drive]) -> None:
    """Replay everything on all engines, and check that nothing is left on any."""
    while True:
        moments = [drive.moment for drive in drives]
        first = moments.index(min(moments))
        drive, others = drives[first], [*moments[:first], NEVER, *moments[first + 1 :]]
        if moments[first] == NEVER:
            break
        next_one = min(others)
        until = next_one + 1 if next_one != NEVER and others.index(next_one) > first else next_one
        drive.turn(moments[first], until)
        if drive.empty_steps > MOST_EMPTY_STEPS and _nobody_gets_on(drives):
            drive.fail_to_end()
    for drive in drives:
        drive.check_end()


def _nobody_gets_on(drives: Sequence[Drive]) -> bool:
    return all(drive.empty_steps > MOST_EMPTY_STEPS or drive.moment == NEVER for drive in drives)
