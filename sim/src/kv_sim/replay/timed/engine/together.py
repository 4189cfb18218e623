"""Several engines in one common time: the engine that is earliest takes the next turn.

An engine may affect another one: by a request that it prefilled, or by a copy. It does so at the time of its own
clock or later, and an engine that takes quiet steps does so no earlier than ``news`` says. So an engine may go on
alone up to the earliest ``news`` of the others, and not beyond. If two engines are at the same time, the first of
them goes on.
"""

from collections.abc import Sequence
from functools import partial

from kv_sim.replay.timed.engine.arrivals import NEVER
from kv_sim.replay.timed.engine.drive import MOST_EMPTY_STEPS, Drive


def run_together(drives: Sequence[Drive]) -> None:
    """Replay all arrivals on all engines, and check at the end that no engine has anything left."""
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
    """The time up to which engine ``first`` may go on alone."""
    news = [drive.news(moment) for drive, moment in zip(drives, moments, strict=True)]
    news[first] = NEVER
    next_one = min(news)
    return next_one + 1 if next_one != NEVER and news.index(next_one) > first else next_one


def _nobody_gets_on(drives: Sequence[Drive]) -> bool:
    return all(drive.empty_steps > MOST_EMPTY_STEPS or drive.moment == NEVER for drive in drives)
