"""What a campaign must reach, and why it need not reach the rest: the whole table, by what its subjects claim."""

from typing import Any

import pytest

from kv_sim.history.expected import Expected, expected
from kv_sim.subject import Subject, Trait

ACTIONS = (
    *("add", "abort", "turn", "step", "schedule", "execute", "retire", "process", "settle", "finish"),
    *("advance", "fail", "spoil", "lose", "find", "repeat", "restart", "reset", "pause", "sleep", "wake"),
)
UNFINISHED = ("waiting", "waiting for a load", "waiting for its next turn", "running", "preempted")
ENDED = ("stopped and held", "at its limit and held", "aborted", "aborted and held", "failed", "failed and held")
OF_FAILURES = ("failed", "failed and held")
NEEDED = {
    Trait.FAILURES: ("fail", "spoil", "restart"),
    Trait.LOSSES: ("lose", "find"),
    Trait.REPEATS: ("repeat",),
    Trait.SLEEP: ("sleep",),
}
ALWAYS = (
    *("match: ask again", "match: asynchronous load", "match: load in the step"),
    *("match: a preempted request loads", "match: the answer is dropped", "a request is preempted"),
    *("a request resumes, runner V1", "a request resumes, runner V2", "an id is finished and new in one step"),
    *("a session goes on", "a session goes on before its last turn is over"),
    *("a session's next input comes before it stops", "a session ends while it waits", "frees are deferred"),
    *("drafts are rejected", "an empty step", "a step while a load is under way"),
    "a step that schedules no running request",
    *("reset answered True", "reset answered False", "reset answered None"),
)
LENT = "a load of what another engine stored"
SOMETIMES = {
    Trait.RANKS: ("match: stages hold different layers",),
    Trait.UNEQUAL: ("match: blocks of several sizes",),
    Trait.FINE: (
        "a block is copied on write",
        "match: more than the end of a block",
        "match: less than the end of a block",
    ),
    Trait.STATES: ("a state within a block is handed over", "match: a load ends within a block"),
    Trait.HOLDS: ("a load by a ticket ends well", "a load by a ticket goes on after tokens on the GPU"),
    Trait.TICKETS: ("a load by a ticket fails",),
    Trait.FAILURES: ("a copy fails", "a copy is torn", "a restart ends copies", "a restart loses host memory"),
    Trait.LOSSES: ("a copy is lost", "a lost copy is found", "a load that stands still is aborted"),
    Trait.RESET: ("a connector forgets at a reset",),
    Trait.SLEEP: (
        *("the engine sleeps", "the engine sleeps and keeps requests", "the engine can't sleep"),
        "a step while the engine sleeps",
    ),
    Trait.CLIENTS: ("a client sends strange parameters", "a client sends no object"),
    Trait.IMAGES: ("a prompt with an image arrives",),
    Trait.STRANGERS: ("a stranger's KV is not found",),
}


def why_not(action: str, state: str, claimed: frozenset[Trait]) -> str | None:
    """Why an action never meets a request in this state: first what nobody could bring about."""
    if action == "abort" and state in ENDED:
        return "a request that has ended can't be aborted any more"
    if action == "turn" and state in ENDED:
        return "a session that has ended doesn't go on"
    if action == "sleep" and state in ENDED:
        return "an engine that has something left to free goes on"
    for trait, actions in NEEDED.items():
        if trait not in claimed and action in actions:
            return f"no subject claims {trait.value!r}"
    if state in OF_FAILURES and Trait.FAILURES not in claimed:
        return "no subject claims 'failures'"
    return None


CLAIMS = {
    "all": frozenset(Trait),
    "none": frozenset[Trait](),
    **{f"all but {trait.value}": frozenset(Trait) - {trait} for trait in Trait},
    **{f"only {trait.value}": frozenset({trait}) for trait in Trait},
}


@pytest.mark.parametrize("claims", CLAIMS)
def test_all_that_can_be_is_expected_and_the_rest_has_a_reason(claims: str) -> None:
    """In the order of actions and states; of failed requests, which are rare, nothing is demanded."""
    claimed = CLAIMS[claims]
    pairs = [(action, state) for action in ACTIONS for state in (*UNFINISHED, *ENDED)]
    reasons = {pair: why_not(*pair, claimed) for pair in pairs}
    can_be = [pair for pair in pairs if reasons[pair] is None]
    kinds: list[dict[str, Any]] = [{"serves_peers": True}, {"engines": 2, "shares_store": True}, {}]
    table = expected(Subject("X", traits=claimed, **kind) for kind in kinds)
    unclaimed = {
        name: f"no subject claims {trait.value!r}"
        for trait, names in SOMETIMES.items()
        for name in names
        if trait not in claimed
    }
    assert table == Expected(
        pairs=tuple(pair for pair in can_be if pair[1] not in OF_FAILURES),
        rare=tuple(pair for pair in can_be if pair[1] in OF_FAILURES),
        situations=table.situations,
        excluded={pair: reason for pair, reason in reasons.items() if reason is not None},
        excluded_situations=unclaimed,
    )
    may_be = [name for trait, names in SOMETIMES.items() if trait in claimed for name in names]
    assert sorted(table.situations) == sorted([*ALWAYS, LENT, *may_be])
    assert [name for name in table.situations if name in ALWAYS] == list(ALWAYS)


def test_a_load_of_anothers_is_expected_where_a_store_is_shared() -> None:
    alone = expected([Subject("X", traits=frozenset())])
    assert alone.excluded_situations[LENT] == "no subject shares a store"
    assert LENT not in alone.situations


@pytest.mark.parametrize("trait", [Trait.HOLDS, Trait.TICKETS, Trait.STRANGERS])
def test_a_claim_that_no_world_of_its_subject_can_try_lets_nothing_be_expected(trait: Trait) -> None:
    """A subject claims all traits if it doesn't say which."""
    alone = expected([Subject("X")])
    assert not {*SOMETIMES[trait]} & {*alone.situations}
    assert {*SOMETIMES[trait]} <= alone.excluded_situations.keys()


@pytest.mark.parametrize("first", [Trait.FAILURES, Trait.FINE])
@pytest.mark.parametrize("second", [Trait.LOSSES, Trait.RESET])
def test_it_is_enough_that_one_subject_claims_it(first: Trait, second: Trait) -> None:
    both = expected([Subject("X", traits=frozenset({first, second}))])
    alone = [Subject("X", traits=frozenset({trait})) for trait in (first, second)]
    assert expected(alone) == expected(reversed(alone)) == both
    assert expected([]) == expected([Subject("X", traits=frozenset())])
