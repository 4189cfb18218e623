"""The matrix of the differential, and what is left out of it, each with its reason."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, Literal

from kv_sim.config import WorldConfig
from kv_sim.subject import Subject, Trait
from kv_vllm.trace import Process, Sampled, Trace


@dataclass(frozen=True)
class Cell:
    """One scheduler of vLLM and one runner."""

    async_scheduling: bool
    runner: Literal[1, 2]

    def __str__(self) -> str:
        return f"{'AsyncScheduler' if self.async_scheduling else 'Scheduler'}, runner {self.runner}"

    def world(self, drawn: WorldConfig, subject: Subject) -> WorldConfig:
        """A drawn world, moved into this cell."""
        run_ahead = max(1, drawn.run_ahead) if self.async_scheduling else drawn.run_ahead
        return replace(
            drawn,
            async_scheduling=self.async_scheduling,
            run_ahead=run_ahead,
            runner=self.runner,
            # A producer's blocks are freed at once, also under run-ahead, so it may not load then.
            role="kv_both" if run_ahead and drawn.role == "kv_producer" else drawn.role,
            zero_new_blocks=drawn.zero_new_blocks and (self.runner == 1 or Trait.ZEROING in subject.traits),
        )


CELLS: Final = (Cell(False, 1), Cell(False, 2), Cell(True, 1), Cell(True, 2))


@dataclass(frozen=True)
class Exclusion:
    """A kind of history that isn't compared, or not to its end."""

    name: str
    reason: str
    begins: Callable[[WorldConfig, Trace], int | None]
    """The first turn that isn't compared."""
    before: tuple[int, int] | None = None
    """Only with a vLLM older than this."""
    hides: frozenset[str] = frozenset()
    """Situations that are never compared for it."""


def _drafts_under_run_ahead(config: WorldConfig, trace: Trace) -> int | None:
    return 0 if config.spec_tokens and config.run_ahead and not config.async_scheduling else None


def _first(trace: Trace, wanted: Callable[[Sampled], bool]) -> int | None:
    """The first turn in which a request samples what is ``wanted``."""
    for number, turn in enumerate(trace.turns):
        if isinstance(turn.event, Process) and any(wanted(sampled) for sampled in turn.event.sampled.values()):
            return number
    return None


def _rewinds(config: WorldConfig, trace: Trace) -> int | None:
    for number, turn in enumerate(trace.turns):
        if isinstance(turn.event, Process) and turn.event.rewound:
            return number
    return None


def _wastes_drafts(config: WorldConfig, trace: Trace) -> int | None:
    return _first(trace, lambda sampled: sampled.surplus > 0)


def _ends_with_drafts(config: WorldConfig, trace: Trace) -> int | None:
    if config.async_scheduling or not config.spec_tokens:
        return None
    return _first(trace, lambda sampled: sampled.ends)


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
        "from the first failed in-step load that is recomputed",
        "Two faults of vLLM's (0.32 and 0.33). The blocks of such a load stay in the prefix cache, so that "
        "others, or the next after an abort, hit what was not loaded; the testbed's engine takes them out. "
        "And under run-ahead Scheduler.update_from_output skips the output of such a request "
        "without taking back the placeholder that AsyncScheduler holds for its token, so the next step computes "
        "one token more than is known; and it keeps the output of steps under way, which rest on what was not "
        "loaded. The testbed's engine drops both.",
        _rewinds,
    ),
    Exclusion(
        "from the first request that ends in the middle of accepted drafts",
        "Since 0.33 vLLM takes the drafts after the last token back from num_computed_tokens before it tells the "
        "connector that the request has ended; the testbed follows 0.33.",
        _wastes_drafts,
        before=(0, 33),
        hides=frozenset({"accepted drafts go to waste"}),
    ),
    Exclusion(
        "from the first request that ends with drafts, without async scheduling",
        "Since 0.33 vLLM's Scheduler offers the blocks of accepted drafts to the prefix cache before it frees "
        "those of a request that stops, as AsyncScheduler did before, so they are freed in another order; the "
        "testbed follows 0.33.",
        _ends_with_drafts,
        before=(0, 33),
        hides=frozenset({"accepted drafts go to waste"}),
    ),
)


def exclusion_of(config: WorldConfig, trace: Trace, version: tuple[int, int]) -> tuple[Exclusion, int] | None:
    """What a history isn't compared for, and from which turn on."""
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
