"""``Script``: the connector's calls of a trace, played to another scheduler; it finds their first difference.

The other scheduler's connector passes each call to the script. The script compares it with the turn's next
recorded call and returns the recorded answer, so both schedulers go on from the same state. The first difference
ends the history, since nothing can be compared after it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from traceback import extract_tb
from typing import Any, Protocol

from kv_vllm.differential.trace import Call, Event, PoolCall, Reset, Schedule, Turn, arguments_of


@dataclass(frozen=True)
class Divergence:
    """The first difference between two schedulers."""

    turn: int
    event: Event
    expected: str
    made: str
    details: tuple[str, ...] = ()

    def __str__(self) -> str:
        lines = [f"turn {self.turn}, {self.event}", f"  expected: {self.expected}", f"  made:     {self.made}"]
        return "\n".join([*lines, *(f"    {detail}" for detail in self.details)])


class DivergedError(Exception):
    """The other scheduler made another call."""

    def __init__(self, expected: str, made: str, details: Sequence[str] = ()) -> None:
        super().__init__(f"expected {expected}, made {made}")
        self.expected = expected
        self.made = made
        self.details = tuple(details)


class Follower(Protocol):
    """A scheduler to which a trace can be played."""

    def apply(self, event: Event) -> bool | None:
        """Apply an event. Returns a reset's answer, or whether the scheduler has work before a step."""


class Script:
    """The calls that are expected in the current turn. ``call_pool`` repeats what was done to the pool in each."""

    def __init__(self, call_pool: Callable[[PoolCall], None] | None = None) -> None:
        self.call_pool = call_pool
        self._expected: Sequence[Call] = ()
        self._next = 0

    def load(self, calls: Sequence[Call]) -> None:
        """Begin a turn, with the calls that are expected in it."""
        self._expected, self._next = calls, 0

    def call(self, name: str, *arguments: Any) -> Any:
        """Compare a call with the next expected one, and return that one's recorded answer."""
        return self.compare(name, arguments_of(name, arguments))

    def compare(self, name: str, made: dict[str, Any]) -> Any:
        """Like ``call``, with arguments that are plain values already."""
        if self._next == len(self._expected):
            raise DivergedError("no further call", _shown(name, made))
        call = self._expected[self._next]
        self._next += 1
        if call.name != name:
            raise DivergedError(_shown(call.name, call.arguments), _shown(name, made))
        details = differences(call.arguments, made)  # not `!=`: the order of scheduled requests counts
        if details:
            raise DivergedError(_shown(name, call.arguments), _shown(name, made), details)
        for pool_call in call.pool_calls:
            if self.call_pool is not None:
                self.call_pool(pool_call)
        return call.answer

    def end(self) -> None:
        """End a turn; raises if an expected call is missing."""
        if self._next < len(self._expected):
            call = self._expected[self._next]
            raise DivergedError(_shown(call.name, call.arguments), "no further call")


def follow(turns: Sequence[Turn], follower: Follower, script: Script) -> Divergence | None:
    """Play a trace to a scheduler whose connector has ``script``; returns the first difference, if any."""
    for number, turn in enumerate(turns):
        script.load(turn.calls)
        try:
            answer = follower.apply(turn.event)
            script.end()
            if isinstance(turn.event, Reset) and answer != turn.event.answer:
                raise DivergedError(f"the reset answers {turn.event.answer}", f"it answers {answer}")
            if isinstance(turn.event, Schedule) and answer != turn.event.answer:
                has = ("it has no work", "it has work")
                raise DivergedError(has[turn.event.answer], has[bool(answer)])
        except DivergedError as error:
            return Divergence(number, turn.event, error.expected, error.made, error.details)
        except Exception as error:  # noqa: BLE001 - any error is a difference: the other engine raised none
            return Divergence(number, turn.event, "no error", f"{error!r} in {_place(error)}")
    return None


def differences(expected: Any, made: Any, path: str = "") -> list[str]:
    """The places where two plain values differ, one line each."""
    if isinstance(expected, dict) and isinstance(made, dict):
        names = list(dict.fromkeys([*expected, *made]))
        if list(expected) != list(made) and set(expected) == set(made):
            return [f"{path or 'arguments'}: order {list(expected)}, made {list(made)}"]
        inner = [
            differences(expected.get(name, "nothing"), made.get(name, "nothing"), f"{path}.{name}".lstrip("."))
            for name in names
        ]
        return [line for lines in inner for line in lines]
    if isinstance(expected, list) and isinstance(made, list) and len(expected) == len(made):
        inner = [differences(a, b, f"{path}[{i}]") for i, (a, b) in enumerate(zip(expected, made, strict=True))]
        return [line for lines in inner for line in lines]
    return [] if expected == made else [f"{path}: {expected!r}, made {made!r}"]


def _shown(name: str, arguments: dict[str, Any]) -> str:
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"


def _place(error: BaseException) -> str:
    innermost = extract_tb(error.__traceback__)[-1]
    return f"{innermost.name}:{innermost.lineno}"
