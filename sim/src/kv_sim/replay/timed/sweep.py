"""``sweep_engine``: a trace on servers with more and more host memory or disk, and which of them keeps a promise.

Each size with each policy is a row; without any, the trace is replayed once for all of them.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from kv_api import ConfigError
from kv_sim.command.table import aligned
from kv_sim.replay.columns import Columns
from kv_sim.replay.fleet import Fleet, Load, RoutedTrace
from kv_sim.replay.side_by_side import Progress
from kv_sim.replay.sizing import usual_capacities
from kv_sim.replay.timed.answers import Answers
from kv_sim.replay.timed.connectors.timed_config import NOTHING
from kv_sim.replay.timed.goal import Goal
from kv_sim.replay.timed.replay import not_replayed, notes_of, plain
from kv_sim.replay.timed.servers import Server, replay_on, shares_of
from kv_sim.replay.timed.settings import EngineSettings, Sizes, plan
from kv_sim.replay.timed.table import header_lines, seconds_shown
from kv_sim.replay.trace import Trace
from kv_sim.replay.units import show_bytes

USUAL_POLICY: Final = "lru"
MUCH: Final = 0.5
"""Of the time to first token; who spends it in the queue isn't helped by memory."""
_TTFT: Final = ("mean", "p50", "p90", "p99")


@dataclass(frozen=True)
class SweepRun:
    """A server with so much."""

    settings: EngineSettings
    answers: Answers

    @property
    def size(self) -> tuple[int, int]:
        """Bytes of host memory, and of the disk."""
        return self.settings.cpu_bytes_to_use, self.settings.disk_bytes_to_use


@dataclass(frozen=True)
class EngineSweep:
    """All rows, and everything that they rest on."""

    trace: str
    settings: EngineSettings
    """Of the first row; others differ in sizes and in the policy."""
    sizes: Sizes
    runs: tuple[SweepRun, ...]
    without: Answers
    goals: tuple[Goal, ...] = ()
    notes: tuple[str, ...] = ()
    load: Load | None = None

    def is_met(self, answers: Answers) -> bool:
        """Whether every goal is; also if there is none."""
        return all(goal.is_met(answers) for goal in self.goals)

    @property
    def recommended(self) -> SweepRun | None:
        """Who meets the goals with least host memory, and of these with least disk: with LRU, if that does.

        None: nobody does, or no memory is needed for it.
        """
        met = [run for run in self.runs if self.is_met(run.answers)]
        if not met or self.is_met(self.without):
            return None
        least = min(run.size for run in met)
        first, *_ = sorted(
            (run for run in met if run.size == least),
            key=lambda run: (run.settings.eviction_policy != USUAL_POLICY, self.goals[0].value(run.answers)),
        )
        return first

    @property
    def can_be_met(self) -> bool:
        """Whether any row meets the goals, or the server without."""
        return any(map(self.is_met, [self.without, *(run.answers for run in self.runs)]))

    def table(self) -> str:
        """What to print."""
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        has_disk = any(run.settings.disk_bytes_to_use for run in self.runs)
        yield from header_lines(self.trace, self.settings, self.sizes, self.notes, self.load, disk=has_disk)
        yield ""
        yield from (f"goal: {goal}" for goal in self.goals)
        of_each = "" if self.load is None else "; sizes are of each server"
        yield f"hits by prompt tokens, and times of requests{of_each}:"
        yield from aligned(self._rows(has_disk))
        refused = [f"not replayed: {text}" for text in not_replayed(self.without.refused)]
        yield from ["", *refused] if refused else []
        if self.goals:
            yield ""
            yield from self._recommendation(has_disk)

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "fidelity": "engine",
            "trace": self.trace,
            "notes": list(self.notes),
            "load": None if self.load is None else asdict(self.load),
            "settings": plain(asdict(self.settings)),
            "sizes": plain(asdict(self.sizes)),
            "goals": [asdict(goal) for goal in self.goals],
            "runs": [self._run_as_json(run) for run in self.runs],
            "without": self.without.as_json() | {"meets_goals": self.is_met(self.without)},
            "recommended": None if self.recommended is None else self._run_as_json(self.recommended),
        }

    def _run_as_json(self, run: SweepRun) -> Mapping[str, Any]:
        return {
            "policy": run.settings.eviction_policy,
            "cpu_bytes": run.settings.cpu_bytes_to_use,
            "disk_bytes": run.settings.disk_bytes_to_use,
            "kv_transfer_config": run.settings.transfer_config(),
            "meets_goals": self.is_met(run.answers),
            "answers": run.answers.as_json(),
        }

    def _rows(self, has_disk: bool) -> list[list[str]]:
        others = [goal for goal in self.goals if goal.measure != "ttft" or goal.statistic not in _TTFT]
        rows = [["policy", "memory"] + ["disk"] * has_disk + ["GPU", "CPU"] + ["disk"] * has_disk]
        rows[0] += ["TTFT mean", "p50", "p90", "p99", "TPOT mean", *(goal.short for goal in others), "tokens/s"]
        rows[0] += ["stored", ""]
        chosen = self.recommended
        for run in (None, *self.runs):
            answers = self.without if run is None else run.answers
            memory, disk = (0, 0) if run is None else run.size
            row = ["none" if run is None else run.settings.eviction_policy, _size(memory)]
            row += [_size(disk)] * has_disk
            row += [f"{answers.gpu_token_ratio:.3f}", f"{answers.cpu_token_ratio:.3f}"]
            row += [f"{answers.disk_token_ratio:.3f}"] * has_disk
            row += [seconds_shown(getattr(answers.ttft, name)) for name in _TTFT]
            row += [seconds_shown(answers.time_per_output_token.mean)]
            row += [seconds_shown(goal.value(answers)) for goal in others]
            row += [f"{answers.tokens_per_second:,.0f}", _size(answers.stores.bytes)]
            is_met = bool(self.goals) and self.is_met(answers)
            rows.append([*row, "◀ here" if run is not None and run is chosen else "met" if is_met else ""])
        return rows

    def _recommendation(self, has_disk: bool) -> Iterator[str]:
        run = self.recommended
        medium = "host memory or disk" if has_disk else "host memory"
        it = "it" if len(self.goals) == 1 else "all of them"
        if self.is_met(self.without):
            yield f"recommended: no {medium}, since a server without any meets {it}"
        elif run is None:
            yield f"recommended: nothing, since no {medium} that was tried meets {it}"
            for goal in self.goals:
                least = min(goal.value(run.answers) for run in self.runs)
                yield f"  the least {goal.short} was {seconds_shown(least)}"
            yield from self._queue()
        else:
            each = "" if self.load is None else f" on each of {self.load.servers} servers"
            memory, disk = run.size
            parts = [show_bytes(memory)] * bool(memory) + [f"{show_bytes(disk)} of disk"] * bool(disk)
            yield f"recommended: {run.settings.eviction_policy}, {' and '.join(parts)}{each}"
            yield f"  the least that was tried and meets {it}"
            yield f"--kv-transfer-config '{json.dumps(run.settings.transfer_config())}'"

    def _queue(self) -> Iterator[str]:
        """Who waits for a free place on the server is helped by memory only as far as others are done sooner."""
        answers = max(self.runs, key=lambda run: run.size).answers
        queued = answers.queueing.mean / answers.ttft.mean if answers.ttft.mean else 0.0
        if queued >= MUCH:
            yield f"  with the most of it {queued:.0%} of the time to first token is spent in the queue:"
            yield "  fewer requests for each server (--servers, --arrival-scale) would change more"


def sweep_engine(
    trace: Trace,
    settings: Sequence[EngineSettings],
    goals: Sequence[Goal] = (),
    progress: Progress = lambda share: None,
    fleet: Fleet | None = None,
    *,
    jobs: int = 1,
) -> EngineSweep:
    """Replay a trace with each of the settings, which differ in sizes and policy alone, and once without."""
    if not settings:
        raise ConfigError("a sweep needs at least one size")
    first = settings[0]
    shares = shares_of(trace, fleet, first.limit)
    servers = [Server(first, NOTHING), *(Server(one, one.transfer_config()) for one in settings)]
    without, *answers = replay_on(shares, servers, jobs, progress)
    for goal in goals if without.requests else ():
        goal.check_counted(without)
    return EngineSweep(
        trace.name,
        first,
        plan(first, trace.block_tokens),
        tuple(SweepRun(one, found) for one, found in zip(settings, answers, strict=True)),
        without,
        tuple(goals),
        notes_of(trace),
        shares.load,
    )


def usual_sizes(
    trace: Columns, settings: EngineSettings, fleet: Fleet, points: int, budget_blocks: int | None = None
) -> list[int]:
    """Bytes of host memory, in even steps of a logarithm: from what the GPUs hold to all prompts and outputs."""
    sizes, routed = plan(settings, trace.block_tokens), RoutedTrace(trace, fleet)
    block_bytes = sizes.kv_bytes_per_token * trace.block_tokens
    outputs = max(int(share.columns.outputs.sum()) for share in routed.shares)
    most = routed.most_blocks + outputs // trace.block_tokens
    if budget_blocks is not None:
        most = min(most, budget_blocks)
    least = sizes.gpu_blocks // sizes.parts
    return [blocks * block_bytes for blocks in usual_capacities(most, points, least)]


def _size(count: int) -> str:
    return show_bytes(count) if count else "-"
