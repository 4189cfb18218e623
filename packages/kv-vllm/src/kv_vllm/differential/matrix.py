"""The differential's matrix of schedulers and runners, and the histories that are excluded, with the reasons."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, Literal

from kv_sim.config import WorldConfig
from kv_sim.subject import Subject, Trait
from kv_vllm.differential.trace import Abort, Process, Reset, Schedule, Trace


@dataclass(frozen=True)
class Cell:
    """One of vLLM's schedulers with one model runner."""

    async_scheduling: bool
    runner: Literal[1, 2]

    def __str__(self) -> str:
        return f"{'AsyncScheduler' if self.async_scheduling else 'Scheduler'}, runner {self.runner}"

    def world(self, drawn: WorldConfig, subject: Subject) -> WorldConfig:
        """A drawn world, changed to fit this cell."""
        run_ahead = max(1, drawn.run_ahead) if self.async_scheduling else drawn.run_ahead
        return replace(
            without_states(drawn),
            async_scheduling=self.async_scheduling,
            run_ahead=run_ahead,
            runner=self.runner,
            # A producer's blocks are freed at once, also under run-ahead, so it may not load or zero then. Of two
            # engines the other one may be it.
            role="kv_both" if run_ahead and (drawn.role == "kv_producer" or drawn.engines > 1) else drawn.role,
            images=False,  # vLLM takes them only for a model that can see
            zero_new_blocks=drawn.zero_new_blocks and (self.runner == 1 or Trait.ZEROING in subject.traits),
        )


def without_states(world: WorldConfig) -> WorldConfig:
    """A world without groups of states: what vLLM makes of those depends on its models.

    Where all have one size, or only states had large blocks, blocks have that size, and a hash each, as vLLM's.
    Nor does it lose what it frees.
    """
    groups = tuple(group for group in world.groups if group.kind != "state")
    if world.is_unequal and any(group.parts == 1 for group in groups):
        return replace(world, groups=groups, evicts=0)
    groups = tuple(replace(group, parts=1) for group in groups)
    return replace(world, groups=groups, hashes_per_block=1, evicts=0)


CELLS: Final = (
    Cell(async_scheduling=False, runner=1),
    Cell(async_scheduling=False, runner=2),
    Cell(async_scheduling=True, runner=1),
    Cell(async_scheduling=True, runner=2),
)


@dataclass(frozen=True)
class Exclusion:
    """A kind of history that isn't compared, or only up to a turn."""

    name: str
    reason: str
    begins: Callable[[WorldConfig, Trace], int | None]
    """The first turn that isn't compared."""
    before: tuple[int, int] | None = None
    """It applies only to a vLLM older than this."""
    hides: frozenset[str] = frozenset()
    """Situations that are never compared because of it."""


def _drafts_under_run_ahead(config: WorldConfig, trace: Trace) -> int | None:
    return 0 if config.spec_tokens and config.run_ahead and not config.async_scheduling else None


def _first(trace: Trace, wanted: Callable[[Process], bool]) -> int | None:
    """The first turn whose output is ``wanted``."""
    for number, turn in enumerate(trace.turns):
        if isinstance(turn.event, Process) and wanted(turn.event):
            return number
    return None


def _shares_failed_blocks(config: WorldConfig, trace: Trace) -> int | None:
    return _first(trace, lambda output: output.shares_failed_blocks)


def _recomputes_failed_loads(config: WorldConfig, trace: Trace) -> int | None:
    if config.failure_policy != "recompute":
        return None
    failed = _first(trace, lambda output: output.has_failed_loads)
    return None if failed is None else failed + 1


def _stops_preempted(config: WorldConfig, trace: Trace) -> int | None:
    return _first(trace, lambda output: output.stops_preempted)


def _wastes_drafts(config: WorldConfig, trace: Trace) -> int | None:
    return _first(trace, lambda output: any(sampled.surplus > 0 for sampled in output.sampled.values()))


def _keeps_room(config: WorldConfig, trace: Trace) -> int | None:
    turns = enumerate(trace.turns)
    return next((n for n, turn in turns if isinstance(turn.event, Schedule) and turn.event.keeps_room), None)


def _goes_with_drafts(config: WorldConfig, trace: Trace) -> int | None:
    """A request stops, or is aborted or preempted by a client, while accepted drafts are its latest tokens."""
    if config.async_scheduling or not config.spec_tokens:
        return None
    latest: set[str] = set()
    for number, turn in enumerate(trace.turns):
        match turn.event:
            case Process(_, sampled):
                if any(tokens.ends for tokens in sampled.values()):
                    return number
                latest = {name for name, tokens in sampled.items() if len(tokens.tokens) > 1}
            case Schedule():
                latest = set()
            case Abort(request_id) if request_id in latest:
                return number
            case Reset(running=True) if latest:
                return number
    return None


EXCLUSIONS: Final = (
    Exclusion(
        "drafts and run-ahead without async scheduling",
        "Steps under way without async scheduling are pipeline parallelism. There vLLM's engine core takes the "
        "drafts of a step right after it has scheduled it (EngineCore.post_step), while its output still waits in "
        "the batch queue, and the next schedule() computes them without the token that comes before them. The "
        "testbed's engine waits for that token.",
        _drafts_under_run_ahead,
    ),
    Exclusion(
        "after the first failed load that is recomputed",
        "Faults of vLLM's (0.32 and 0.33), which the testbed's engine has not. Blocks that a load within the step "
        "failed to fill stay in the prefix cache, so that others, or the next after an abort, hit what was not "
        "loaded. Under AsyncScheduler the request keeps a placeholder for the token that is dropped, so the next "
        "step computes one token more than is known, and the output of steps under way is kept. A request whose "
        "asynchronous load failed still counts as one in its prefill, so it reserves blocks against its own next "
        "load.",
        _recomputes_failed_loads,
    ),
    Exclusion(
        "from the first failed load of a block that several requests share",
        "A fault of vLLM's (0.32 and 0.33), which the testbed's engine has not. Of a block that a load within the "
        "step failed to fill, the second request that has it still counts as computed, since the first one "
        "recomputes it. But the first one may fail for it, and then the connector is told that the second one "
        "ends with tokens that nobody computed.",
        _shares_failed_blocks,
    ),
    Exclusion(
        "from the first load that leaves no room for a request before it",
        "A fault of vLLM's (0.32 and 0.33), which the testbed's engine has not. A prompt in its prefill reserves "
        "for a window at most as many blocks as one needs at a time; vLLM subtracts from these even those that "
        "the window has passed. So it begins loads that leave no room for the next chunks of requests before "
        "them, and it may be that none of them ever goes on.",
        _keeps_room,
    ),
    Exclusion(
        "from the first session that stops while it is preempted",
        "Before 0.33 vLLM puts a session that output under way stops while it is preempted into no queue, and "
        "takes the tokens that it keeps from what is computed, which is nothing then. The testbed follows 0.33: "
        "it goes on with all but the last token, and is matched anew.",
        _stops_preempted,
        before=(0, 33),
    ),
    Exclusion(
        "from the first request that ends in the middle of accepted drafts",
        "Since 0.33 vLLM takes the drafts after the last token back from num_computed_tokens before it tells the "
        "connector that the request has ended, and before a session goes on; the testbed follows 0.33.",
        _wastes_drafts,
        before=(0, 33),
        hides=frozenset({"accepted drafts go to waste"}),
    ),
    Exclusion(
        "from the first request that goes with drafts, without async scheduling",
        "Since 0.33 vLLM's Scheduler offers the blocks of accepted drafts to the prefix cache when they come "
        "back, as AsyncScheduler did before; 0.32 does it in the next step. The blocks of a request that stops, "
        "is aborted or is preempted before that are freed in another order; the testbed follows 0.33.",
        _goes_with_drafts,
        before=(0, 33),
        hides=frozenset({"accepted drafts go to waste"}),
    ),
)


def exclusion_of(config: WorldConfig, trace: Trace, version: tuple[int, int]) -> tuple[Exclusion, int] | None:
    """The exclusion that applies to a history, and the first turn that isn't compared; None if there is none."""
    found = [
        (exclusion, begins)
        for exclusion in EXCLUSIONS
        if exclusion.before is None or version < exclusion.before
        if (begins := exclusion.begins(config, trace)) is not None
    ]
    return min(found, key=lambda one: one[1], default=None)


def hidden(version: tuple[int, int]) -> frozenset[str]:
    """The situations that can't be compared with this version."""
    return frozenset().union(*(e.hides for e in EXCLUSIONS if e.before is not None and version < e.before))
