"""Shrinking by itself: histories that fail by a rule as plain as a line, and what must be left of them."""

from ast import literal_eval
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from types import SimpleNamespace
from typing import Any

import pytest

from kv_sim.actions import Action, Kind
from kv_sim.config import GroupConfig, WorldConfig
from kv_sim.engine.builtin import BuiltinEngine
from kv_sim.examples.catalogue import MEMORY
from kv_sim.failures.shrink import MACROS, PLAIN, shrink
from kv_sim.fuzz import Failure
from kv_sim.subject import Subject
from kv_sim.violation import Invariant, Violation

History = Sequence[Action]
Rule = Callable[[History, WorldConfig], bool]
PLAINEST = WorldConfig(max_step_tokens=64, num_blocks=40)


def act(kind: str, **args: Any) -> Action:
    return Action(Kind(kind), args)


def add(name: str = "r1", tokens: int = 1, **changes: Any) -> Action:
    spec = {
        "request_id": name,
        "conversation": 0,
        "shared_tokens": tokens,
        "own_tokens": 0,
        "output_tokens": 1,
        "max_tokens": 1,
        "salt": None,
        "adapter": None,
        "skip_reading_prefix_cache": False,
    }
    return act("add", spec={**spec, **changes})


STEP = act("step")


class Replays:
    """In the place of real worlds: a history fails if the rule says so. ``abort`` is legal nowhere."""

    def __init__(self, rule: Rule) -> None:
        self.rule = rule
        self.tried: list[tuple[str, WorldConfig]] = []
        self.without: set[frozenset[Invariant]] = set()
        self.breaks = Invariant.HITS

    def __call__(
        self, subject: Subject, config: WorldConfig, history: History, without: frozenset[Invariant]
    ) -> tuple[Any, Violation | None]:
        assert subject is MEMORY
        self.tried.append((str([*map(str, history)]), config))
        self.without.add(without)
        taken = [action for action in history if action.kind is not Kind.ABORT]
        fails = self.rule(taken, config)
        return SimpleNamespace(history=taken), Violation(self.breaks, f"{len(taken)}") if fails else None


@pytest.fixture
def shrunk(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Failure, Replays]]:
    def run(
        rule: Rule, history: list[Action], config: WorldConfig = PLAINEST, **options: Any
    ) -> tuple[Failure, Replays]:
        replays = Replays(rule)
        monkeypatch.setattr("kv_sim.failures.shrink.replay", replays)
        found = Failure(MEMORY, config, history, Violation(Invariant.HITS, "first"), 7)
        best = shrink(found, **options)
        tried = replays.tried[:-1]
        assert len(set(tried)) == len(tried), "nothing is tried twice, but whether an engine runs ahead"
        assert best.seed == 7
        return best, replays

    return run


def holds(*wanted: Action) -> Rule:
    """These are there, in this order."""

    def rule(history: History, config: WorldConfig) -> bool:
        rest = iter(history)
        return all(any(action == one for action in rest) for one in wanted)

    return rule


def numbered(kind: str, count: int) -> list[Action]:
    return [act(kind, rejects={"r": number}) for number in range(count)]


@pytest.mark.parametrize("count", [1, 2, 7, 32, 33])
def test_only_what_it_needs_is_left(shrunk: Any, count: int) -> None:
    steps = numbered("step", count)
    for wanted in (0, count // 3, count - 1):
        left = [steps[number] for number in dict.fromkeys((wanted, count - 1))]
        best, _ = shrunk(holds(*left), steps)
        assert best.history == left
        assert str(best.violation) == f"HITS  {len(left)}"


def test_what_is_not_legal_is_left_out_at_once(shrunk: Any) -> None:
    best, replays = shrunk(lambda history, config: True, [act("abort", request="r1"), *numbered("step", 3)])
    assert best.history == []
    assert len(replays.tried) < 10


@pytest.mark.parametrize(
    ("tokens", "needs", "left"),
    [(40, 8, 8), (40, 9, 9), (40, 5, 5), (40, 10, 10), (40, 1, 1), (3, 1, 1), (9, 6, 8), (12, 12, 12)],
)
def test_prompts_get_shorter(shrunk: Any, tokens: int, needs: int, left: int) -> None:
    """To a block or two and a token more, or to a half; from the bottom."""

    def rule(history: History, config: WorldConfig) -> bool:
        return any(a.kind is Kind.ADD and a.args["spec"]["shared_tokens"] >= needs for a in history)

    assert shrunk(rule, [add("r1", tokens)])[0].history == [add("r1", left)]


ODD = {
    "own_tokens": 3,
    "salt": "s",
    "adapter": "a",
    "image": "i",
    "skip_reading_prefix_cache": True,
    "output_tokens": 2,
    "max_tokens": 5,
}


@pytest.mark.parametrize(
    "kept", ["own_tokens", "salt", "adapter", "image", "skip_reading_prefix_cache", "max_tokens", ""]
)
def test_requests_get_plainer(shrunk: Any, kept: str) -> None:
    def rule(history: History, config: WorldConfig) -> bool:
        specs = [action.args["spec"] for action in history if action.kind is Kind.ADD]
        return len(specs) == 2 and all(not kept or spec.get(kept) == ODD[kept] for spec in specs)

    left = {name: ODD[name] for name in (["output_tokens", kept] if kept == "max_tokens" else [kept]) if name}
    best, _ = shrunk(rule, [STEP, add("r1", **ODD), STEP, add("r2", **ODD)])
    if kept == "image":
        left["image_at"] = 0
    assert best.history == [add("r1", **left), add("r2", **left)]


@pytest.mark.parametrize(
    ("sent", "needs", "left"),
    [
        ({"a": 1, "b": 2, "c": 3}, lambda sent: True, None),
        ({"a": 1, "b": 2, "c": 3}, lambda sent: bool(sent) and "b" in sent, {"b": 2}),
        ({"a": 1}, lambda sent: isinstance(sent, dict), {"a": 1}),
        (["a", "b"], lambda sent: True, None),
        (["a", "b"], bool, ["a", "b"]),
    ],
)
def test_clients_send_less(shrunk: Any, sent: Any, needs: Callable[[Any], bool], left: Any) -> None:
    def rule(history: History, config: WorldConfig) -> bool:
        specs = [action.args["spec"] for action in history if action.kind is Kind.ADD]
        return len(specs) == 1 and needs(specs[0].get("kv_transfer_params"))

    best, _ = shrunk(rule, [add("r1", kv_transfer_params=sent)])
    assert best.history == [add("r1", **({} if left is None else {"kv_transfer_params": left}))]


def turn(tokens: int, output: int = 1, most: int = 1) -> dict[str, int]:
    return {"tokens": tokens, "output_tokens": output, "max_tokens": most}


@pytest.mark.parametrize(
    ("needs", "left"),
    [
        (lambda turns: True, None),
        (lambda turns: turns is not None, []),
        (lambda turns: turns is not None and len(turns) > 1, [turn(1), turn(1)]),
        (lambda turns: any(one["tokens"] == 8 for one in turns or ()), [turn(8)]),
        (lambda turns: any(one["output_tokens"] == 2 for one in turns or ()), [turn(5, 2, 4)]),
        (lambda turns: turns is None, None),
    ],
)
@pytest.mark.parametrize("had", [[turn(3), turn(8, 3, 3), turn(5, 2, 4)], [], None])
def test_sessions_get_fewer_and_plainer_turns(
    shrunk: Any, needs: Callable[[Any], bool], left: Any, had: Any
) -> None:
    """One that doesn't need to be a session is none, and no other request becomes one."""
    session = add("r1") if had is None else add("r1", turns=had)

    def rule(history: History, config: WorldConfig) -> bool:
        return any(a.kind is Kind.ADD and needs(a.args["spec"].get("turns")) for a in history)

    if rule([session], PLAINEST):
        assert shrunk(rule, [session])[0].history == [add("r1") if left is None else add("r1", turns=left)]


ELABORATE = WorldConfig(
    num_blocks=9,
    groups=(GroupConfig(), GroupConfig("sliding", 4)),
    layers=2,
    tp_size=2,
    pp_size=2,
    max_running=1,
    max_step_tokens=8,
    run_ahead=3,
    async_scheduling=True,
    runner=2,
    zero_new_blocks=True,
    spec_tokens=2,
    role="kv_consumer",
)


@pytest.mark.parametrize("kept", ["", *PLAIN])
def test_worlds_get_plainer(shrunk: Any, kept: str) -> None:
    """But for what it needs; asynchronous scheduling needs run-ahead."""

    def rule(history: History, config: WorldConfig) -> bool:
        return not kept or getattr(config, kept) == getattr(ELABORATE, kept)

    left = {kept: getattr(ELABORATE, kept)} if kept else {}
    if kept == "async_scheduling":
        left["run_ahead"] = 1
    assert shrunk(rule, [], ELABORATE)[0].config == replace(PLAINEST, **left)
    names = [field.name for field in fields(ELABORATE)]
    assert set(PLAIN) >= {name for name in names if getattr(ELABORATE, name) != getattr(PLAINEST, name)}


def test_the_plainest() -> None:
    assert replace(ELABORATE, **{name: values[0] for name, values in PLAIN.items()}) == PLAINEST
    assert (STEP, act("settle"), act("reset", running=True, connector=False)) == MACROS


def test_the_plainest_world_is_tried_at_once(shrunk: Any) -> None:
    """The history, without its first half, without the rest, and then in that world: no more is left to try."""
    best, replays = shrunk(lambda history, config: True, numbered("step", 8), ELABORATE)
    assert (best.history, best.config) == ([], PLAINEST)
    assert [len(literal_eval(history)) for history, _ in replays.tried] == [8, 4, 0, 0]


def test_a_step_of_run_ahead_is_tried_before_three(shrunk: Any) -> None:
    best, _ = shrunk(lambda history, config: config.run_ahead > 0, [], ELABORATE)
    assert (best.config.run_ahead, best.config.async_scheduling) == (1, False)


def test_no_world_is_tried_that_the_engine_can_not_be(shrunk: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is drawn so, and a plainer one that only others could be would show something else."""

    def fit(config: WorldConfig) -> WorldConfig:
        return replace(config, spec_tokens=0) if config.run_ahead and not config.async_scheduling else config

    monkeypatch.setattr(BuiltinEngine, "fit", fit)
    best, replays = shrunk(lambda history, config: config.run_ahead > 0, [], ELABORATE)
    assert all(config == fit(config) for _, config in replays.tried)
    assert best.config == replace(PLAINEST, run_ahead=1)
    begun, drafts = act("schedule"), replace(PLAINEST, spec_tokens=2)

    def fails(history: History, config: WorldConfig) -> bool:
        return begun in history and (config.spec_tokens > 0 or config.run_ahead > 0)

    best, replays = shrunk(fails, [begun], drafts)
    assert best.config == replace(PLAINEST, run_ahead=1)
    assert all(config == fit(config) for _, config in replays.tried)


@pytest.mark.parametrize(
    ("kind", "fails_ahead", "ahead"), [("schedule", True, 1), ("schedule", False, 0), ("find", True, 0)]
)
def test_what_comes_before_a_step_has_ended_is_in_an_engine_that_runs_ahead(
    shrunk: Any, kind: str, fails_ahead: bool, ahead: int
) -> None:
    """If it fails there, too, and not where steps are whole."""
    begun = act(kind)

    def fails(history: History, config: WorldConfig) -> bool:
        return begun in history and (fails_ahead or config.run_ahead != 1)

    for before in (0, 1, 3):
        best, _ = shrunk(fails, [begun], replace(PLAINEST, run_ahead=before))
        assert best.history == [begun]
        assert best.config.run_ahead == (ahead if before != 1 or fails_ahead else before)


@pytest.mark.parametrize(
    ("history", "needs", "left"),
    [
        ([act("execute", rank=0), act("retire", rank=0), act("process"), act("execute", rank=1)], 1, [STEP]),
        ([act("schedule"), act("execute", rank=0), act("settle")], 2, [STEP, STEP]),
        ([act("finish", rank=0, copy=0)], 1, [STEP]),
        ([act("settle")], 1, [STEP]),
        ([add()], 1, [add()]),
        ([add(output_tokens=1, max_tokens=5)], 1, [add()]),
        ([act("step", rejects={"r1": 1})], 1, [act("step", rejects={"r1": 1})]),
        ([act("reset", running=True, connector=True)], 1, [STEP]),
    ],
)
def test_runs_of_small_actions_become_one(
    shrunk: Any, history: list[Action], needs: int, left: list[Action]
) -> None:
    assert shrunk(lambda history, config: len(history) >= needs, history)[0].history == left


@pytest.mark.parametrize(
    "history",
    [
        [act("finish", rank=0, copy=0)],
        [add(), act("settle")],
        [act("execute", rank=0), act("settle")],
        [act("execute", rank=0), act("retire", rank=0), act("process"), add()],
    ],
)
def test_one_two_or_four_become_one_at_once(shrunk: Any, history: list[Action]) -> None:
    """Even where nothing in between fails, and a request is one of them."""
    assert shrunk(lambda tried, config: tried in (history, [STEP]), history)[0].history == [STEP]


@pytest.mark.parametrize("macro", MACROS)
def test_the_plainest_that_does_it_is_taken(shrunk: Any, macro: Action) -> None:
    """A request stays one."""
    later = MACROS[MACROS.index(macro) :]

    def rule(history: History, config: WorldConfig) -> bool:
        kinds = [action.kind for action in history]
        return kinds[:1] == [Kind.ADD] and any(
            action.kind in [one.kind for one in later] or action.kind is Kind.FINISH for action in history[1:]
        )

    best, _ = shrunk(rule, [add(), act("finish", rank=1, copy=9), act("lose", rank=0, copy=1)])
    assert best.history == [add(), macro]


@pytest.mark.parametrize(
    ("rank", "copy", "needs", "left"),
    [
        (1, 9, 0, (0, 0)),
        (1, 9, 4, (0, 4)),
        (1, 2, 2, (0, 2)),
        (1, 9, 5, (0, 5)),
        (0, 3, 2, (0, 2)),
        (1, 2, 9, (1, 2)),
        (1, 9, 6, (1, 9)),
    ],
)
def test_copies_are_renumbered(shrunk: Any, rank: int, copy: int, needs: int, left: tuple[int, int]) -> None:
    def rule(history: History, config: WorldConfig) -> bool:
        one, then = history if len(history) == 2 else (STEP, STEP)
        return (
            one.kind is Kind.FINISH
            and then == STEP
            and (one.args["copy"] >= needs or one == act("finish", rank=rank, copy=copy))
        )

    best, _ = shrunk(rule, [act("finish", rank=rank, copy=copy), STEP])
    assert best.history == [act("finish", rank=left[0], copy=left[1]), STEP]


def test_with_each_request_goes_a_copy_or_none(shrunk: Any) -> None:
    def rule(history: History, config: WorldConfig) -> bool:
        counts = [sum(a.kind is Kind.ADD for a in history[:i]) for i, a in enumerate(history) if "copy" in a.args]
        names = [action.args["copy"] for action in history if "copy" in action.args]
        return len(names) == 2 and names == counts and history[-1] == STEP

    copies = [act("fail", rank=0, copy=2), act("lose", rank=0, copy=3)]
    history = [add("r1"), add("r2"), STEP, copies[0], add("r3"), copies[1], STEP]
    assert shrunk(rule, history)[0].history == [
        *(replace(one, args=one.args | {"copy": 0}) for one in copies),
        STEP,
    ]


@pytest.mark.parametrize("first", [2, 1])
def test_with_two_requests_at_once_go_two_copies(shrunk: Any, first: int) -> None:
    """Or as many as there are."""

    def rule(history: History, config: WorldConfig) -> bool:
        requests = sum(action.kind is Kind.ADD for action in history)
        copies = [a.args["copy"] for a in history if "copy" in a.args]
        return requests != 1 and copies == [first if requests else 0]

    history = [add("r1"), add("r2"), STEP, act("fail", rank=0, copy=first)]
    assert shrunk(rule, history)[0].history == [act("fail", rank=0, copy=0)]


def test_a_request_that_gets_plainer_takes_no_copy_along(shrunk: Any) -> None:
    """It is still there, and so is its copy."""
    history = [add("r1", salt="s"), act("fail", rank=0, copy=1)]
    other = [add("r1"), act("fail", rank=0, copy=0)]
    best, _ = shrunk(lambda tried, config: tried in (history, other), history)
    assert best.history == history


def test_before_each_try_it_tells_how_many_actions_are_left(shrunk: Any) -> None:
    steps, told = numbered("step", 30), list[int]()
    _, replays = shrunk(holds(steps[3]), steps, tells=told.append)
    assert len(told) == len(replays.tried)
    assert told[:2] == [30, 30] and told[-1] == 1
    assert told == sorted(told, reverse=True)


@pytest.mark.parametrize("most", [0, 1, 2, 5, 20])
def test_it_ends_when_its_tries_are_spent(shrunk: Any, most: int) -> None:
    steps = numbered("step", 30)
    best, replays = shrunk(holds(steps[3], steps[17]), steps, ELABORATE, most_replays=most)
    assert len(replays.tried) == most
    assert holds(steps[3], steps[17])(best.history, best.config)
    assert (len(best.history) < 30) is (most >= 5)


def test_what_fails_sooner_the_next_time_is_shorter(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connector need not do the same each time."""

    def replay(subject: Subject, config: WorldConfig, history: History, without: Any) -> tuple[Any, Any]:
        specs = [action.args["spec"] for action in history if action.kind is Kind.ADD]
        taken = history if any(spec["salt"] for spec in specs) else []
        return SimpleNamespace(history=taken), Violation(Invariant.HITS, "again") if specs else None

    monkeypatch.setattr("kv_sim.failures.shrink.replay", replay)
    found = Failure(MEMORY, PLAINEST, [STEP, add("r1", salt="s", turns=[])], Violation(Invariant.HITS, "first"))
    assert shrink(found).history == []


def test_copies_are_renumbered_in_what_has_become_shorter(monkeypatch: pytest.MonkeyPatch) -> None:
    zero, first, second = (act("finish", rank=0, copy=copy) for copy in (0, 3, 4))

    def replay(subject: Subject, config: WorldConfig, history: History, without: Any) -> tuple[Any, Any]:
        fails = history in ([first, second], [zero, second], [zero])
        taken = history if first in history else [zero]
        return SimpleNamespace(history=taken), Violation(Invariant.HITS, "again") if fails else None

    monkeypatch.setattr("kv_sim.failures.shrink.replay", replay)
    found = Failure(MEMORY, PLAINEST, [first, second], Violation(Invariant.HITS, "first"))
    assert shrink(found).history == [zero]


def test_what_does_not_fail_the_same_way_is_left_as_it_was(shrunk: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = numbered("step", 4)
    without = frozenset({Invariant.WORK})
    best, replays = shrunk(lambda history, config: False, steps, without=without)
    assert (best.history, str(best.violation), len(replays.tried)) == (steps, "HITS  first", 1)
    assert replays.without == {without}
    other = Replays(lambda history, config: True)
    other.breaks = Invariant.WORK
    monkeypatch.setattr("kv_sim.failures.shrink.replay", other)
    assert shrink(best) is best
    assert len(other.tried) == 1


def test_a_world_that_breaks_while_it_is_set_up_has_no_history(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "kv_sim.failures.shrink.replay", lambda *args: (None, Violation(Invariant.NO_CRASH, "set up"))
    )
    found = Failure(MEMORY, PLAINEST, numbered("step", 3), Violation(Invariant.NO_CRASH, "first"))
    assert shrink(found).history == []


@pytest.mark.parametrize(
    ("prompt", "drafts", "blocks"), [(155, 0, 40), (156, 0, 100), (152, 2, 40), (153, 2, 100), (500, 0, 100)]
)
def test_no_world_gets_too_small_for_its_requests(shrunk: Any, prompt: int, drafts: int, blocks: int) -> None:
    """One that waits for room that is never there would be stuck, too, whatever the connector did.

    In a world as large as before, nothing stands in the way of whom it had no room for.
    """

    def rule(history: History, config: WorldConfig) -> bool:
        adds = [a for a in history if a.kind is Kind.ADD]
        return any(a.args["spec"]["shared_tokens"] >= prompt for a in adds) and config.spec_tokens == drafts

    config = replace(PLAINEST, num_blocks=100, spec_tokens=drafts)
    best, _ = shrunk(rule, [STEP, add("r1", prompt)], config)
    assert (best.config.num_blocks, best.history) == (blocks, [add("r1", prompt)])


def test_when_enough_was_tried_the_best_so_far_is_left(shrunk: Any) -> None:
    left = iter([True] * 3)  # the history itself, whether to go on, and half of it
    best, replays = shrunk(holds(STEP), [*numbered("settle", 8), STEP], goes_on=lambda: next(left, False))
    assert (len(replays.tried), len(best.history)) == (2, 5)
    best, replays = shrunk(holds(STEP), [*numbered("settle", 8), STEP], goes_on=lambda: False)
    assert (replays.tried, len(best.history)) == ([], 9)
