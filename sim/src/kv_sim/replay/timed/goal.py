"""``Goal``: how long requests may take, as in an operator's service level: ``ttft-p90=800ms``."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from kv_api import ConfigError
from kv_sim.replay.timed.runs.answers import Answers, Spread

MEASURES: Final[Mapping[str, tuple[str, str]]] = {
    "ttft": ("time to first token", "ttft"),
    "tpot": ("time per output token", "time_per_output_token"),
    "latency": ("latency", "latency"),
    "queueing": ("queueing", "queueing"),
}
"""as typed -> in words, and the field of `Answers`"""

STATISTICS: Final = ("mean", "p50", "p90", "p95", "p99", "worst")
UNITS: Final[Mapping[str, float]] = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
EXPECTED: Final = "ttft-p90=800ms"
_FORM: Final = re.compile(r"([a-z]+)-([a-z0-9]+)=([0-9]{1,12}(?:\.[0-9]{1,12})?)([a-zµ]*)")


@dataclass(frozen=True)
class Goal:
    """An upper limit for a statistic of a duration."""

    measure: str
    statistic: str
    most_seconds: float

    @property
    def short(self) -> str:
        """The head of its column in a table."""
        return f"{self.measure} {self.statistic}"

    def value(self, answers: Answers) -> float:
        """The statistic's value in a replay, in seconds."""
        value: float = getattr(self._spread(answers), self.statistic)
        return value

    def is_met(self, answers: Answers) -> bool:
        """Whether a replay's value is within the limit."""
        return self.value(answers) <= self.most_seconds

    def check_counted(self, answers: Answers) -> None:
        """Refuse a goal about a duration that no request of the replay has."""
        if not self._spread(answers).count:
            raise ConfigError(f"{self.measure}-{self.statistic}: no request has a {MEASURES[self.measure][0]}")

    def _spread(self, answers: Answers) -> Spread:
        spread: Spread = getattr(answers, MEASURES[self.measure][1])
        return spread

    def __str__(self) -> str:
        return f"{MEASURES[self.measure][0]}, {self.statistic}, of at most {self.most_seconds:g} s"


def parse_goals(text: str) -> tuple[Goal, ...]:
    """Parse one or more goals with commas between them."""
    return tuple(_parse(part.strip()) for part in text.split(","))


def _parse(text: str) -> Goal:
    found = _FORM.fullmatch(text)
    if found is None:
        raise ConfigError(f"--goal {text}: expected MEASURE-STATISTIC=TIME, such as {EXPECTED}")
    measure, statistic, number, unit = found.groups()
    for what, value, known in (
        ("measure", measure, MEASURES),
        ("statistic", statistic, STATISTICS),
        ("unit", unit, UNITS),
    ):
        if value not in known:
            raise ConfigError(f"--goal {text}: unknown {what} {value!r}; known: {', '.join(known)}")
    return Goal(measure, statistic, float(number) * UNITS[unit])
