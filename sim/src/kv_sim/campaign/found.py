"""The failures of a campaign, and which legal pairs and situations it reached."""

from collections import Counter
from dataclasses import dataclass, field

from kv_sim.console.table import aligned
from kv_sim.fuzz import Failure
from kv_sim.history.coverage import Coverage
from kv_sim.history.expected import NEVER_BETWEEN_ACTIONS, RARE_SITUATIONS, STATES, Expected


@dataclass
class Batch:
    """What a worker found since its last report."""

    coverage: Coverage = field(default_factory=Coverage)
    histories: Counter[str] = field(default_factory=Counter)
    steps: int = 0
    failures: dict[str, Failure] = field(default_factory=dict)
    """The first failure of each subject, by its name."""
    crash: str | None = None
    """The testbed itself failed: where, and the traceback."""
    is_last: bool = False


@dataclass
class Campaign(Batch):
    """Everything that was found."""

    was_interrupted: bool = False
    seconds: float = 0.0

    def take(self, batch: Batch) -> None:
        """Add what a worker sent."""
        self.coverage.add(batch.coverage)
        self.histories.update(batch.histories)
        self.steps += batch.steps
        self.crash = self.crash or batch.crash
        for name, failure in batch.failures.items():
            known = self.failures.get(name)
            if known is None or (failure.seed or 0) < (known.seed or 0):
                self.failures[name] = failure


def missing(campaign: Campaign, expected: Expected) -> list[str]:
    """A line for each legal pair or situation that was never reached, and for each illegal one that was."""
    pairs, situations = campaign.coverage.pairs, campaign.coverage.situations
    unseen: dict[str, list[str]] = {}
    for action, state in expected.pairs:
        if not pairs[action, state]:
            unseen.setdefault(action, []).append(repr(state))
    lines = [
        f"never reached: {action} while a request is {' or '.join(states)}" for action, states in unseen.items()
    ]
    demanded = [name for name in expected.situations if name not in RARE_SITUATIONS]
    lines += [f"never reached: {name}" for name in demanded if not situations[name]]
    known = {*expected.pairs, *expected.rare}
    lines += [
        f"reached {number} times, but it can't be: {pair[0]} while a request is {pair[1]!r} "
        f"({expected.excluded.get(pair) or NEVER_BETWEEN_ACTIONS.get(pair[1], 'no such state')})"
        for pair, number in sorted(pairs.items())
        if pair not in known
    ]
    lines += [
        f"reached {number} times, but not in the table: {name}"
        for name, number in sorted(situations.items())
        if name not in expected.situations
    ]
    return lines


def tables(campaign: Campaign, expected: Expected) -> list[str]:
    """Two tables: how often each pair and each situation was reached. ``-``: it isn't expected."""
    pairs, situations = campaign.coverage.pairs, campaign.coverage.situations
    actions = list(dict.fromkeys(action for action, _ in (*expected.pairs, *expected.excluded)))
    rows = [["action \\ a request is", *STATES]]
    for action in actions:
        cells = [
            "-" if (action, state) in expected.excluded and not pairs[action, state] else str(pairs[action, state])
            for state in STATES
        ]
        rows.append([action, *cells])
    lines = [*aligned(rows), ""]
    names = [*expected.situations, *expected.excluded_situations]
    shown = [[name, str(situations[name]) if name in expected.situations else "-"] for name in names]
    lines += aligned([["situation", "times"], *shown])
    reasons: dict[str, list[str]] = {}
    for (action, state), reason in expected.excluded.items():
        reasons.setdefault(reason, []).append(f"{action} × {state}")
    for name, reason in expected.excluded_situations.items():
        reasons.setdefault(reason, []).append(name)
    lines += ["", "not expected (-):"]
    lines += [f"  {reason}: {_some(what)}" for reason, what in reasons.items()]
    return lines


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
