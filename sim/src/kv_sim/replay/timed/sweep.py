"""``sweep_engine``: a trace on servers with several sizes of host memory or disk, and which sizes meet the goals.

There is a row for each size with each policy and each number of prefilling servers. The server without a connector
is replayed once, for comparison with all rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from kv_api import ConfigError
from kv_sim.replay.caches.policies import USUAL_POLICY
from kv_sim.replay.columns import Columns
from kv_sim.replay.crew import Crew, Progress
from kv_sim.replay.servers.fleet import Fleet, Load, RoutedTrace
from kv_sim.replay.sizing.capacities import usual_capacities
from kv_sim.replay.timed.connectors.timed_config import NOTHING
from kv_sim.replay.timed.goal import Goal
from kv_sim.replay.timed.replay import notes_of
from kv_sim.replay.timed.runs.answers import Answers
from kv_sim.replay.timed.runs.servers import ServerKind, check_together, replay_on, shares_of
from kv_sim.replay.timed.server.settings import EngineSettings
from kv_sim.replay.timed.server.sizes import Sizes, plan
from kv_sim.replay.trace import Trace


@dataclass(frozen=True)
class SweepRun:
    """One row: a server's settings and its answers."""

    settings: EngineSettings
    answers: Answers

    @property
    def size(self) -> tuple[int, int]:
        """Bytes of host memory and of the disk."""
        return self.settings.cpu_bytes_to_use, self.settings.disk_bytes_to_use


@dataclass(frozen=True)
class EngineSweep:
    """All rows, with the settings, sizes and notes that they depend on."""

    trace: str
    settings: EngineSettings
    """The first row's. Other rows differ only in sizes, policy and the number of prefilling servers."""
    sizes: Sizes
    runs: tuple[SweepRun, ...]
    without: Answers
    goals: tuple[Goal, ...] = ()
    notes: tuple[str, ...] = ()
    load: Load | None = None

    def is_met(self, answers: Answers) -> bool:
        """Whether every goal is met; True if there is none."""
        return all(goal.is_met(answers) for goal in self.goals)

    @property
    def recommended(self) -> SweepRun | None:
        """The row that meets the goals with the least host memory, then the least disk; of equals, LRU's.

        None: no row meets them, or the server without a connector does.
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
        """Whether any row, or the server without a connector, meets the goals."""
        return any(map(self.is_met, [self.without, *(run.answers for run in self.runs)]))


def sweep_engine(
    trace: Trace,
    settings: Sequence[EngineSettings],
    goals: Sequence[Goal] = (),
    progress: Progress = lambda share: None,
    fleet: Fleet | None = None,
    *,
    jobs: int = 1,
) -> EngineSweep:
    """Replay a trace with each of the settings, and once without a connector, on servers that prefill and decode.

    The settings may differ only in sizes, policy and the number of prefilling servers.
    """
    if not settings:
        raise ConfigError("a sweep needs at least one size")
    first = settings[0]
    for one in settings:
        check_together(fleet, one, one.transfer_config())
    shares = shares_of(trace, fleet, first.limit)
    alone = replace(first, prefill_servers=0)
    kinds = [ServerKind(alone, NOTHING), *(ServerKind(one, one.transfer_config()) for one in settings)]
    without, *answers = replay_on(shares, kinds, Crew(jobs, progress))
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
    """Sizes of host memory in bytes, in equal ratios: from what the GPU holds to all prompts and outputs."""
    sizes, routed = plan(settings, trace.block_tokens), RoutedTrace(trace, fleet)
    block_bytes = sizes.kv_bytes_per_token * trace.block_tokens
    outputs = max(int(share.columns.outputs.sum()) for share in routed.shares)
    most = routed.most_blocks + outputs // trace.block_tokens
    if budget_blocks is not None:
        most = min(most, budget_blocks)
    least = sizes.gpu_blocks // sizes.parts
    return [blocks * block_bytes for blocks in usual_capacities(most, points, least)]
