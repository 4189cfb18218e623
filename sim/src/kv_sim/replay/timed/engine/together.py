"""Several engines in one time: whoever is earliest takes the next turn.

What one engine does may bring something to another one: a request that it has begun, a copy. It does so at the
time of its own clock or later, and of one that takes quiet steps is known that it doesn't before some moment
(``news``). So an engine may go on by itself up to the earliest of these moments of the others, and not beyond; of
two that are at the same time the first one goes on.
"""

from collections.abc import Sequence
from functools import partial

from kv_sim.replay.timed.engine.arrivals import NEVER
from kv_sim.replay.timed.engine.drive import MOST_EMPTY_STEPS, Drive


def run_together(drives: Sequence[Drive]) -> None:
    """Replay everything on all engines, and check that nothing is left on any."""
    while True:
        moments = [drive.moment for drive in drives]
        moment = min(moments)
        if moment == NEVER:
            break
        first = moments.index(moment)
        drive = drives[first]
        drive.turn(moment, partial(_until, drives, moments, first))
        if drive.empty_steps > MOST_EMPTY_STEPS and _nobody_gets_on(drives):
            drive.fail_to_end()
    for drive in drives:
        drive.check_end()


def _until(drives: Sequence[Drive], moments: Sequence[int], first: int) -> int:
    """Up to where one of them may go on by itself."""
    news = [drive.news(moment) for drive, moment in zip(drives, moments, strict=True)]
    news[first] = NEVER
    next_one = min(news)
    return next_one + 1 if next_one != NEVER and news.index(next_one) > first else next_one


def _nobody_gets_on(drives: Sequence[Drive]) -> bool:
    return all(drive.empty_steps > MOST_EMPTY_STEPS or drive.moment == NEVER for drive in drives)
