"""What a campaign must reach: every legal (action, state of a request) pair and every named situation, as data.

A pair is legal if some subject's world can take the action while a request is in that state *between* actions.
What is not legal stands here with its reason. A campaign fails for a legal pair that it never reached. It also
fails for a pair that it did reach although this table says that it can't be: then the table is wrong.

A pair or situation that needs a trait is expected only if a subject of the campaign claims the trait.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from kv_sim.actions import Kind
from kv_sim.engine.request import Status
from kv_sim.history.coverage import CONTINUED, IMAGE, LENT, NO_OBJECT, NOT_PULLED, PULLED, STRANGE, STRANGE_WORDS
from kv_sim.subject import Subject, Trait

Pair: TypeAlias = tuple[str, str]
"""(action, state of a request), in the words of ``coverage``."""

HELD: Final = " and held"

UNFINISHED: Final = (
    Status.WAITING.value,
    Status.WAITING_FOR_REMOTE_KVS.value,
    Status.WAITING_FOR_STREAMING_REQ.value,
    Status.RUNNING.value,
    Status.PREEMPTED.value,
)
ENDED: Final = {
    Status.FINISHED_STOPPED.value + HELD: "a connector stores what it computed",
    Status.FINISHED_LENGTH_CAPPED.value + HELD: "a connector stores what it computed, or another engine pulls it",
    Status.FINISHED_ABORTED.value: "its load is still under way",
    Status.FINISHED_ABORTED.value + HELD: "a connector stores what it had computed",
    Status.FINISHED_ERROR.value: "its load failed on one rank and is under way on another",
    Status.FINISHED_ERROR.value + HELD: "a load in the step failed, and a connector stores what there was before",
}
"""The states in which an ended request is still known to the engine, and why."""

STATES: Final = (*UNFINISHED, *ENDED)

RARE: Final = (Status.FINISHED_ERROR.value, Status.FINISHED_ERROR.value + HELD)
"""States so rare that ten minutes need not reach every action in them: they are shown but not required."""

RARE_SITUATIONS: Final = ("match: a load ends within a block",)
"""Situations that are so rare."""

NEVER_BETWEEN_ACTIONS: Final = {
    **{
        end.value: "a request that stops is held for a store, or gone at once"
        for end in (Status.FINISHED_STOPPED, Status.FINISHED_LENGTH_CAPPED)
    },
    **{state + HELD: "blocks are held for a store only after the request has ended" for state in UNFINISHED},
}
"""States, as ``coverage`` names them, in which no action ever meets a request."""

STATE_NEEDS: Final[Mapping[str, Trait]] = {
    Status.FINISHED_ERROR.value: Trait.FAILURES,
    Status.FINISHED_ERROR.value + HELD: Trait.FAILURES,
}
KIND_NEEDS: Final[Mapping[Kind, Trait]] = {
    Kind.FAIL: Trait.FAILURES,
    Kind.SPOIL: Trait.FAILURES,
    Kind.LOSE: Trait.LOSSES,
    Kind.FIND: Trait.LOSSES,
    Kind.REPEAT: Trait.REPEATS,
    Kind.RESTART: Trait.FAILURES,
    Kind.SLEEP: Trait.SLEEP,
}


@dataclass(frozen=True)
class Exclusion:
    """Actions that never meet requests of some states."""

    kinds: tuple[Kind, ...]
    states: tuple[str, ...]
    reason: str


EXCLUSIONS: Final = (
    Exclusion((Kind.ABORT,), tuple(ENDED), "a request that has ended can't be aborted any more"),
    Exclusion((Kind.TURN,), tuple(ENDED), "a session that has ended doesn't go on"),
    Exclusion((Kind.SLEEP,), tuple(ENDED), "an engine that has something left to free goes on"),
)

SLEEPS: Final = (
    "the engine sleeps",
    "the engine sleeps and keeps requests",
    "the engine can't sleep",
    "a step while the engine sleeps",
)
FORGETS: Final = "a connector forgets at a reset"

SITUATIONS: Final[Mapping[str, str]] = {
    "match: ask again": "an answer of None, after which the request is asked about in another step",
    "match: asynchronous load": "its blocks are known only after the allocation",
    "match: load in the step": "at least one token is left to compute",
    "match: a preempted request loads": "it may be matched again before its preemption is reported",
    "match: the answer is dropped": "a match doesn't always become a load",
    "match: stages hold different layers": "chunk sizes differ by rank, and a rank may lack a group's layers",
    "match: blocks of several sizes": "the groups' block tables have different lengths",
    "a request is preempted": "no waiting request is matched in that step",
    "a request resumes, runner V1": "it is listed with the running requests",
    "a request resumes, runner V2": "it is listed with the new requests",
    "an id is finished and new in one step": "a reused id is another request",
    "a block is copied on write": "a hit on the GPU ends within a block",
    "match: more than the end of a block": "a load replaces the copy of a block",
    "match: less than the end of a block": "the hit on the GPU is longer, so nothing is loaded",
    "a state within a block is handed over": "it is in a copy of the block that the next step writes",
    "match: a load ends within a block": "the last blocks of all groups count up to there",
    "a session goes on": "it has blocks, and isn't matched",
    "a session goes on before its last turn is over": "running steps of its last turn write blocks that it keeps",
    "a session's next input comes before it stops": "it goes on, or ends, without a pause",
    "a session ends while it waits": "no step computes for it then",
    "frees are deferred": "running steps may still write the blocks",
    "drafts are rejected": "fewer tokens count as computed afterwards",
    "an empty step": "steps go on while the connector has work",
    "a step while a load is under way": "the loading request has blocks, and is in no step",
    "a step that schedules no running request": "a pause keeps running requests",
    PULLED: "the blocks come from another engine",
    CONTINUED: "only the rest is pulled, so blocks here and there are counted from different places",
    NOT_PULLED: "the other engine is late, or its hold has ended",
    LENT: "engines find each other's chunks",
    STRANGE: "keys and tickets must tell models and layouts apart",
    "a copy fails": "its blocks or chunks are not filled",
    "a copy is torn": "some pages were moved",
    "a copy is lost": "its end is never reported",
    "a lost copy is found": "it goes on late, perhaps after it was given up",
    "a load that stands still is aborted": "its copies may still go on later",
    "a restart ends copies": "all of them at once",
    "a restart loses host memory": "stored chunks can't be loaded",
    "reset answered True": "no block on the GPU can be found any more",
    "reset answered False": "blocks are in use, or the connector refuses",
    "reset answered None": "running requests are preempted, but blocks are still in use: the engine raises",
    FORGETS: "its reset_cache answered True",
    STRANGE_WORDS: "kv_transfer_params come from clients, and may be wrong",
    NO_OBJECT: "vLLM passes on whatever a client sends",
    IMAGE: "equal tokens may stand for different images",
    "the engine sleeps": "the GPU memory is freed",
    "the engine sleeps and keeps requests": "they were preempted, and are matched again",
    "the engine can't sleep": "a session or a load holds blocks",
    "a step while the engine sleeps": "a request that it kept is aborted",
}
"""Every counted situation, and the part of the contract that it tests."""

SITUATION_NEEDS: Final[Mapping[str, Trait]] = {
    "match: stages hold different layers": Trait.RANKS,
    "match: blocks of several sizes": Trait.UNEQUAL,
    "a block is copied on write": Trait.FINE,
    "match: more than the end of a block": Trait.FINE,
    "match: less than the end of a block": Trait.FINE,
    "a state within a block is handed over": Trait.STATES,
    "match: a load ends within a block": Trait.STATES,
    PULLED: Trait.HOLDS,
    CONTINUED: Trait.HOLDS,
    NOT_PULLED: Trait.TICKETS,
    STRANGE: Trait.STRANGERS,
    "a copy fails": Trait.FAILURES,
    "a copy is torn": Trait.FAILURES,
    "a copy is lost": Trait.LOSSES,
    "a lost copy is found": Trait.LOSSES,
    "a load that stands still is aborted": Trait.LOSSES,
    "a restart ends copies": Trait.FAILURES,
    "a restart loses host memory": Trait.FAILURES,
    FORGETS: Trait.RESET,
    STRANGE_WORDS: Trait.CLIENTS,
    NO_OBJECT: Trait.CLIENTS,
    IMAGE: Trait.IMAGES,
    **dict.fromkeys(SLEEPS, Trait.SLEEP),
}


def situations_of(subject: Subject) -> list[str]:
    """The situations that a connector of this kind could reach if it claimed all that it can."""
    needs = {name: SITUATION_NEEDS.get(name) for name in SITUATIONS if subject.shares_store or name != LENT}
    possible = {None, *subject.possible_traits}
    return [name for name, trait in needs.items() if trait in possible]


@dataclass(frozen=True)
class Expected:
    """What a campaign over some subjects must reach."""

    pairs: tuple[Pair, ...]
    rare: tuple[Pair, ...]
    """Pairs that may be reached but need not be."""
    situations: tuple[str, ...]
    excluded: Mapping[Pair, str]
    """Pairs that are not expected, with the reason."""
    excluded_situations: Mapping[str, str]


def expected(subjects: Iterable[Subject]) -> Expected:
    """What a campaign over ``subjects`` must reach."""
    all_of_them = [*subjects]
    claimed = frozenset(
        trait for subject in all_of_them for trait in subject.possible_traits if trait in subject.traits
    )
    excluded = {}
    for kind in Kind:
        for state in STATES:
            reason = next(_reasons(kind, state, claimed), None)
            if reason is not None:
                excluded[kind.value, state] = reason
    pairs = [(kind.value, state) for kind in Kind for state in STATES]
    without = {name: _nobody(trait) for name, trait in SITUATION_NEEDS.items() if trait not in claimed}
    if not any(subject.shares_store for subject in all_of_them):
        without[LENT] = "no subject shares a store"
    return Expected(
        tuple(pair for pair in pairs if pair not in excluded and pair[1] not in RARE),
        tuple(pair for pair in pairs if pair not in excluded and pair[1] in RARE),
        tuple(name for name in SITUATIONS if name not in without),
        excluded,
        without,
    )


def _reasons(kind: Kind, state: str, claimed: frozenset[Trait]) -> Iterator[str]:
    for exclusion in EXCLUSIONS:
        if kind in exclusion.kinds and state in exclusion.states:
            yield exclusion.reason
    for trait in (KIND_NEEDS.get(kind), STATE_NEEDS.get(state)):
        if trait is not None and trait not in claimed:
            yield _nobody(trait)


def _nobody(trait: Trait) -> str:
    return f"no subject claims {trait.value!r}"
