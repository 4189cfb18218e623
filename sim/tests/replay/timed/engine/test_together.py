"""Several engines in one time."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest

from kv_sim.replay.timed.engine.arrivals import NEVER
from kv_sim.replay.timed.engine.drive import MOST_EMPTY_STEPS
from kv_sim.replay.timed.engine.together import run_together


class StuckError(Exception):
    """What `fail_to_end` raises here."""


@dataclass
class Engine:
    """Fits ``Drive``: goes on at these moments."""

    name: str
    moments: list[int]
    seen: list[tuple[str, int, int]]
    empty_steps: int = 0
    brings: dict[int, tuple["Engine", int]] = field(default_factory=dict)
    """By moment: a moment that another engine gets then."""
    quiet: dict[int, int] = field(default_factory=dict)
    """By moment: until when the others will hear of nothing, if it isn't at once."""
    checked: bool = False

    @property
    def moment(self) -> int:
        return self.moments[0] if self.moments else NEVER

    def news(self, moment: int) -> int:
        return self.quiet.get(moment, moment)

    def turn(self, moment: int, until: Callable[[], int]) -> None:
        self.seen.append((self.name, moment, until()))
        assert moment == self.moments.pop(0)
        if moment in self.brings:
            other, when = self.brings[moment]
            other.moments.append(when)

    def check_end(self) -> None:
        self.checked = True

    def fail_to_end(self) -> None:
        raise StuckError(self.name)


def run(engines: Sequence[Engine]) -> None:
    run_together(engines)  # type: ignore[arg-type]


def test_who_is_earliest_goes_on_up_to_where_the_others_are() -> None:
    """Of two at the same time the first one does, and is before the other up to that very moment."""
    seen: list[tuple[str, int, int]] = []
    engines = [Engine("a", [1, 5, 6], seen), Engine("b", [], seen), Engine("c", [2, 5, 9], seen)]
    run(engines)
    assert seen == [("a", 1, 3), ("c", 2, 5), ("a", 5, 6), ("c", 5, 6), ("a", 6, 10), ("c", 9, NEVER)]
    assert all(engine.checked for engine in engines)


def test_who_takes_quiet_steps_holds_nobody_up() -> None:
    seen: list[tuple[str, int, int]] = []
    quiet = Engine("quiet", [2, 9], seen, quiet={2: 7})
    run([quiet, Engine("busy", [1, 5, 8], seen)])
    assert seen == [
        ("busy", 1, 7),
        ("quiet", 2, 6),
        ("busy", 5, 9),
        ("busy", 8, 9),
        ("quiet", 9, NEVER),
    ], "but itself goes on no further than the other's clock"


def test_who_has_nothing_left_goes_on_when_somebody_brings_something() -> None:
    seen: list[tuple[str, int, int]] = []
    idle = Engine("idle", [], seen)
    run([idle, Engine("busy", [3, 8], seen, brings={3: (idle, 4), 8: (idle, 20)})])
    assert seen == [("busy", 3, NEVER), ("idle", 4, 9), ("busy", 8, NEVER), ("idle", 20, NEVER)]


@pytest.mark.parametrize(("others", "is_stuck"), [([MOST_EMPTY_STEPS + 1], True), ([3], False), ([], True)])
def test_who_waits_in_vain_ends_a_replay_unless_somebody_gets_on(others: list[int], is_stuck: bool) -> None:
    engines = [Engine("waits", [1, 2], [], MOST_EMPTY_STEPS + 1), *(Engine("other", [7], [], n) for n in others)]
    if not is_stuck:
        run(engines)
        return
    with pytest.raises(StuckError, match="waits"):
        run(engines)
