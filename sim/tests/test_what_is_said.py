"""Lines that people read: actions, worlds, copies, steps, values and failures, compared whole."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kv_sim_notes import Notes

from kv_api import Direction
from kv_api.contract import CONTRACT
from kv_sim.actions import Action, Kind
from kv_sim.cli.subjects import subject_lines
from kv_sim.config import STATE, GroupConfig, WorldConfig
from kv_sim.console.output import say_interrupted
from kv_sim.engine.request import SimRequest
from kv_sim.engine.request_spec import RequestSpec
from kv_sim.examples.catalogue import LATER, MEMORY, SUBJECTS
from kv_sim.failures.report import action_lines, fail_line, file_stem, replay_line, shrunk_lines
from kv_sim.failures.schedule_file import read_schedule
from kv_sim.failures.telling import tell
from kv_sim.fuzz import Failure
from kv_sim.site import Call
from kv_sim.subject import Subject, Trait
from kv_sim.violation import Invariant, Violation
from kv_sim.watching import brief as brief_module
from kv_sim.watching.brief import brief, brief_step, brief_tables
from kv_sim.watching.describe import describe, describe_pairs, describe_world
from kv_sim.watching.engine_lines import MOST_WIDTH, SILENT
from kv_sim.watching.log import Log
from kv_sim.world import World

SPEC = {
    "request_id": "r1",
    "conversation": 3,
    "shared_tokens": 9,
    "own_tokens": 0,
    "output_tokens": 2,
    "max_tokens": 5,
    "salt": None,
    "adapter": None,
    "skip_reading_prefix_cache": False,
}


def act(kind: str, **args: Any) -> Action:
    return Action(Kind(kind), args)


@pytest.mark.parametrize(
    ("action", "line"),
    [
        (act("add", spec=SPEC), "add      r1: 9 tokens of conversation 3, samples 2 of at most 5"),
        (
            act(
                "add",
                spec={**SPEC, "own_tokens": 4, "salt": "s", "adapter": "a", "skip_reading_prefix_cache": True},
            ),
            "add      r1: 9 tokens of conversation 3 + 4 own, samples 2 of at most 5, salt s, adapter a, "
            "skips reading caches",
        ),
        (act("abort", request="r1"), "abort    r1"),
        (act("step"), "step     "),
        (act("step", rejects={"r1": 1, "r2": 2}), "step     rejects {r1: 1, r2: 2}"),
        (act("execute", rank=1), "execute  rank 1"),
        (act("finish", rank=1, copy=7), "finish   rank 1, copy 7"),
        (act("advance", rank=0, copy=0, pages=2), "advance  rank 0, copy 0, pages 2"),
        (act("restart", rank=1, memory=False), "restart  rank 1"),
        (act("restart", rank=1, memory=True), "restart  rank 1, its host memory is lost"),
        (act("reset", running=False, connector=False), "reset    the prefix cache"),
        (act("reset", running=False, connector=True), "reset    the prefix cache and connector"),
        (act("reset", running=True, connector=False), "reset    the prefix cache and running"),
        (act("step", more=3), "step     more 3"),
    ],
)
def test_an_action(action: Action, line: str) -> None:
    assert describe(action) == line


def test_a_world() -> None:
    config = WorldConfig(
        num_blocks=30,
        block_size=8,
        hashes_per_block=4,
        groups=(GroupConfig(), STATE),
        hands_over_states=True,
        tp_size=2,
        pp_size=3,
        max_running=5,
        max_step_tokens=32,
        role="kv_consumer",
        failure_policy="fail",
        host_slots=7,
    )
    assert describe_world(config) == (
        "30 blocks of 8; groups: full, state 2; tp 2 pp 3; run-ahead 0; runner V1; at most 5 running, 32 tokens a "
        "step; 7 host slots; kv_consumer, failed loads: fail; 4 hashes a block"
    )
    for stages, told in {
        "more_later": "1 + 1 | 2 + 2 | 2 + 2",
        "more_first": "2 + 2 | 1 + 1 | 1 + 1",
        "groups_apart": "1 + 0 | 0 + 2 | 1 + 0",
    }.items():
        assert f"; tp 2 pp 3 of {told} layers; " in describe_world(replace(config, stages=stages))


def test_groups_are_described_with_the_size_of_their_blocks() -> None:
    groups = (GroupConfig(parts=4), GroupConfig("sliding", 8))
    config = WorldConfig(num_blocks=60, block_size=8, groups=groups, hashes_per_block=4)
    assert "; groups: full in blocks of 2, sliding 8; " in describe_world(config)


@pytest.mark.parametrize(
    ("stranger", "told"),
    [
        ("none", "kv_both with 46 blocks"),
        ("model", "kv_both with 46 blocks, a stranger: another model"),
        ("blocks", "kv_both with 46 blocks of 8, a stranger: blocks of another size"),
        ("ranks", "kv_both with 46 blocks, a stranger: another number of ranks"),
    ],
)
def test_a_second_engine_is_described_where_it_differs(stranger: Any, told: str) -> None:
    config = WorldConfig(num_blocks=30, block_size=4, engines=2, stranger=stranger)
    more = config.at(1).num_blocks
    assert f"; 2 engines, the second {told.replace('46', str(more))}" in f"{describe_world(config)};"
    assert f"{told.replace('46', str(more))};" in f"{describe_world(config)};"


@pytest.mark.parametrize(
    ("direction", "count", "text"),
    [
        (Direction.STORE, 2, "block 0 → host 10, block 1 → host 11"),
        (Direction.LOAD, 1, "host 10 → block 0"),
        (
            Direction.LOAD,
            5,
            "host 10 → block 0, host 11 → block 1, host 12 → block 2, host 13 → block 3, host 14 → block 4",
        ),
        (
            Direction.STORE,
            6,
            "block 0 → host 10, block 1 → host 11, block 2 → host 12, block 3 → host 13, block 4 → host 14, "
            "… 6 in all",
        ),
    ],
)
def test_the_pages_of_a_copy(direction: Direction, count: int, text: str) -> None:
    assert describe_pairs(direction, tuple((page, page + 10) for page in range(count))) == text


class Colour(Enum):
    RED = "red"


@dataclass
class Data:
    name: str = "n"
    nothing: list[int] = field(default_factory=list)
    zero: int = 0
    none: None = None
    expected_finished_count: int = 3


class Plain:
    def __init__(self) -> None:
        self.seen, self._hidden, self.empty = {1}, 2, ()


class Deep:
    def __init__(self, levels: int) -> None:
        self.d = Deep(levels - 1) if levels else "end"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "None"),
        (True, "True"),
        (2.5, "2.5"),
        ("a b", "a b"),
        (b"\x01\x02\x03\x04\x05", "01020304"),
        (Colour.RED, "red"),
        (SimRequest(RequestSpec("r7", 0, 4, 0, 1, 1), 4, 0), "r7"),
        (SimpleNamespace(request_id=7), "SimpleNamespace(request_id=7)"),
        (SimpleNamespace(get_block_ids=lambda: ([1, 0], [2])), "blocks [1 ·] [2]"),
        ({"k": [1]}, "{k: [1]}"),
        ({3, 1, 2}, "{1, 2, 3}"),
        (frozenset({"b", "a"}), "{a, b}"),
        ((1, "x"), "(1, x)"),
        (list(range(8)), "[0, 1, 2, 3, 4, 5, 6, 7]"),
        (list(range(9)), "[0, 1, 2, 3, 4, 5, 6, 7, … 9 in all]"),
        (tuple(range(9)), "(0, 1, 2, 3, 4, 5, 6, 7, … 9 in all)"),
        (set(range(9)), "{0, 1, 2, 3, 4, 5, 6, 7, … 9 in all}"),
        (dict.fromkeys(range(9), 0), "{0: 0, 1: 0, 2: 0, 3: 0, 4: 0, 5: 0, 6: 0, 7: 0, … 9 in all}"),
        (SimpleNamespace(shape=[2, 3]), "array(2, 3)"),
        (Data(), "Data(name=n, zero=0)"),
        (Plain(), "Plain(seen={1})"),
        (Deep(5), "Deep(d=Deep(d=Deep(d=Deep(d=Deep(d=Deep(d=end))))))"),
        (Deep(6), "Deep(d=Deep(d=Deep(d=Deep(d=Deep(d=Deep(d=…))))))"),
        ([[[[[[[1]]]]]]], "[[[[[[…]]]]]]"),
        ({1: {2: {3: {4: {5: {6: {7: 8}}}}}}}, "{1: {2: {3: {4: {5: {6: …}}}}}}"),
    ],
)
def test_any_value(value: Any, text: str) -> None:
    assert brief(value) == text


def step(**of: Any) -> Any:
    plain: dict[str, Any] = {
        "num_scheduled_tokens": {"r1": 4, "r2": 1, "r3": 2},
        "scheduled_cached_reqs": SimpleNamespace(req_ids=[], resumed_req_ids=set()),
        "scheduled_new_reqs": [],
        "kv_cache_block_copies": None,
        "kv_connector_block_state": None,
        "finished_req_ids": set(),
        "preempted_req_ids": None,
    }
    return SimpleNamespace(**{**plain, **of})


@pytest.mark.parametrize(
    ("output", "text"),
    [
        (step(), "nothing to compute"),
        (step(kv_connector_block_state=SimpleNamespace(boundary_state_offloads={})), "nothing to compute"),
        (
            step(
                scheduled_new_reqs=[
                    SimpleNamespace(req_id="r1", num_computed_tokens=8),
                    SimpleNamespace(req_id="r2", num_computed_tokens=0),
                ]
            ),
            "new r1+4 after 8, r2+1 after 0",
        ),
        (
            step(scheduled_cached_reqs=SimpleNamespace(req_ids=["r3", "r2"], resumed_req_ids={"r2"})),
            "on r3+2, r2+1 resumed",
        ),
        (
            step(
                kv_cache_block_copies=[
                    SimpleNamespace(src_block_id=s, dst_block_id=d) for s, d in ((1, 2), (3, 4))
                ]
            ),
            "copies block 1 into 2, 3 into 4",
        ),
        (
            step(
                kv_connector_block_state=SimpleNamespace(
                    boundary_state_offloads={"r1": [(1, 5, 8), (1, 6, 12)], "r2": [(1, 7, 4)]}
                )
            ),
            "hands over block 5 of r1 after 8, block 6 of r1 after 12, block 7 of r2 after 4",
        ),
        (
            step(finished_req_ids={"r9", "r8"}, preempted_req_ids={"r7", "r6"}),
            "finished r8, r9; preempted r6, r7",
        ),
    ],
)
def test_a_step(output: Any, text: str) -> None:
    assert brief_step(output) == text


def test_block_tables() -> None:
    assert brief_tables([[1, 0, 12], [], [3]]) == "[1 · 12] [] [3]"
    assert brief_module.MOST_ITEMS < 10


def called(*calls: tuple[str, str, tuple[Any, ...], Any]) -> list[str]:
    """What a log makes of calls in a world where nothing else happens."""
    lines: list[str] = []
    made, log = World(WorldConfig(), MEMORY), Log(lines.append)
    log.begins(made)
    for call in calls:
        log.called(Call(0, *call))
    log.acted(3, Action(Kind.STEP), legal=True)
    assert lines[:3] == ["connector MemoryConnector", f"world     {describe_world(made.config)}", "   3 step"]
    return lines[3:]


SCHEDULER, WORKER = "scheduler", "worker 0"
R1 = SimRequest(RequestSpec("r1", 0, 4, 0, 1, 1), 4, 0)


@pytest.mark.parametrize(
    ("call", "line"),
    [
        ((SCHEDULER, "get_num_new_matched_tokens", (R1, 4), (8, True)), "r1 after 4 -> 8 tokens, asynchronous"),
        ((SCHEDULER, "get_num_new_matched_tokens", (R1, 0), (0, False)), "r1 after 0 -> 0 tokens"),
        ((SCHEDULER, "get_num_new_matched_tokens", (R1, 0), (None, False)), "r1 after 0 -> ask again"),
        ((SCHEDULER, "get_num_new_matched_tokens", (R1, 0), 7), "r1 after 0 -> 7"),
        ((SCHEDULER, "get_num_new_matched_tokens", (R1, 0), (1, 2, 3)), "r1 after 0 -> (1, 2, 3)"),
        ((SCHEDULER, "reset_cache", (), None), ""),
        ((SCHEDULER, "reset_cache", (), False), "-> False"),
        ((SCHEDULER, "request_finished", (R1, [1, 2]), (True, None)), "r1 [1, 2] -> (True, None)"),
        ((WORKER, "handle_preemptions", (None,), None), ""),
        ((WORKER, "get_transfer_results", (set(),), Data(zero=1)), "{} -> Data(name=n, zero=1)"),
        ((WORKER, "get_block_ids_with_load_errors", (), {3}), "-> {3}"),
        ((WORKER, "build_connector_worker_meta", (), {"r1": 1}), "-> {r1: 1}"),
    ],
)
def test_a_call(call: tuple[str, str, tuple[Any, ...], Any], line: str) -> None:
    assert called(call) == [f"     {call[0]:<11} {call[1]} {line}".rstrip()]


@pytest.mark.parametrize(
    "call",
    [
        (SCHEDULER, "take_events", (), [1]),
        (SCHEDULER, "on_new_request", (R1,), None),
        (WORKER, "wait_for_save", (), None),
        (WORKER, "get_kv_connector_stats", (), None),
        (WORKER, "get_block_ids_with_load_errors", (), set()),
        (
            WORKER,
            "get_transfer_results",
            (set(),),
            SimpleNamespace(done=set(), none=None, expected_finished_count=3),
        ),
        (WORKER, "build_connector_worker_meta", (), None),
    ],
)
def test_a_call_that_says_nothing(call: tuple[str, str, tuple[Any, ...], Any]) -> None:
    assert called(call) == []


def test_what_is_silent_is_a_method_of_a_connector() -> None:
    assert set(SILENT) <= {member.name for member in CONTRACT}
    for name in SILENT:
        assert called((WORKER, name, (), None)) == []


def test_steps_that_come_back_are_counted() -> None:
    nothing, something = SimpleNamespace(done=set()), SimpleNamespace(done={"r1"})
    assert called(
        (SCHEDULER, "update_connector_output", (nothing,), None),
        (SCHEDULER, "update_connector_output", (something,), None),
        (SCHEDULER, "build_connector_meta", ({"r1": 4},), Data()),
    ) == [
        "     scheduler   step 1 came back",
        "     scheduler   step 2 came back with SimpleNamespace(done={r1})",
        "     scheduler   step 0: {r1: 4} -> Data(name=n, zero=0)",
    ]


@pytest.mark.parametrize("length", [MOST_WIDTH, MOST_WIDTH + 1])
def test_a_long_line_is_cut(length: int) -> None:
    word = "x" * (length - len("reset_cache "))
    shown = f"reset_cache {word}" if length == MOST_WIDTH else f"reset_cache {word[:-2]}…"
    assert called((SCHEDULER, "reset_cache", (word,), None)) == [f"     scheduler   {shown}"]


# -- failures -----------------------------------------------------------------------------------


def failure(actions: int, message: str = "m") -> Failure:
    return Failure(MEMORY, WorldConfig(), [act("step")] * actions, Violation(Invariant.HITS, message), 7)


def test_a_failure() -> None:
    file = Path("a folder") / "f.jsonl"
    assert fail_line(failure(20)) == "FAIL seed=7 actions=20  HITS  m"
    assert shrunk_lines(failure(20), failure(1), "kv-sim fuzz", file) == [
        "shrunk to 1 action",
        "    1 step",
        "replay: kv-sim fuzz",
        f"shrunk: kv-sim replay-schedule '{file}'",
    ]
    assert shrunk_lines(failure(20), failure(1), "kv-sim fuzz", None) == [
        "shrunk to 1 action",
        "    1 step",
        "replay: kv-sim fuzz",
    ]
    assert shrunk_lines(failure(20), failure(2, "other"), "kv-sim fuzz", Path("f.jsonl")) == [
        "shrunk to 2 actions  HITS  other",
        "    1 step",
        "    2 step",
        "replay: kv-sim fuzz",
        "shrunk: kv-sim replay-schedule f.jsonl",
    ]


@pytest.mark.parametrize("file", [Path("f.jsonl"), None])
def test_a_failure_as_it_was_found_is_not_called_shrunk(file: Path | None) -> None:
    found = failure(2)
    saved = ["saved: kv-sim replay-schedule f.jsonl"] if file else []
    assert shrunk_lines(found, found, "kv-sim fuzz", file) == [
        "2 actions",
        "    1 step",
        "    2 step",
        "replay: kv-sim fuzz",
        *saved,
    ]
    same = shrunk_lines(found, replace(found), "kv-sim fuzz", file)
    assert same[0] == "shrunk to 2 actions", "there was nothing to remove"


def test_a_failure_is_shrunk_and_saved_without_what_is_switched_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, shrunk, without = failure(20), failure(2, "other"), frozenset({Invariant.WORK})
    lines: list[str] = []
    asked: list[tuple[Failure, frozenset[Invariant]]] = []

    def shrink(failure: Failure, without: frozenset[Invariant], **more: object) -> Failure:
        asked.append((failure, without))
        return shrunk

    monkeypatch.setattr("kv_sim.failures.telling.shrink", shrink)
    monkeypatch.setattr("kv_sim.failures.telling._fails_again", lambda *_: True)
    tell(found, "kv-sim fuzz", tmp_path, "f", say=lines.append, note=lines.append, without=without)
    file = tmp_path / "f.jsonl"
    assert lines == [fail_line(found), *shrunk_lines(found, shrunk, "kv-sim fuzz", file)]
    assert asked == [(found, without)]
    assert (read_schedule(file).history, read_schedule(file).without) == (shrunk.history, without)


def test_a_failure_that_its_actions_alone_do_not_explain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a connector with a thread: the same actions pass when they are taken once more."""
    answers, notes, found = iter([True, False, False]), list[str](), failure(2)
    monkeypatch.setattr("kv_sim.failures.telling.shrink", lambda failure, **more: failure)
    monkeypatch.setattr("kv_sim.failures.telling._fails_again", lambda *_: next(answers))
    tell(found, "kv-sim fuzz", tmp_path, "f", say=lambda _: None, note=notes.append)
    (said,) = notes
    assert said.startswith(f"replayed 3 times, these actions break {found.violation.invariant} 1 times: ")


def test_who_waits_for_a_failure_to_be_shrunk_hears_how_far_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Now and then: not at each try."""
    times, notes, found = iter([0.0, 0.0, 3.0, 11.0, 11.0, 12.0, 20.0, 21.5, 21.5]), list[str](), failure(20)

    def shrink(failure: Failure, tells: Callable[[int], object], **more: object) -> Failure:
        for actions in (20, 15, 12, 8, 5):
            tells(actions)
        return failure

    monkeypatch.setattr("kv_sim.failures.deadline.monotonic", lambda: next(times, 0.0))
    monkeypatch.setattr("kv_sim.failures.telling.shrink", shrink)
    monkeypatch.setattr("kv_sim.failures.telling._fails_again", lambda *_: True)
    tell(found, "kv-sim fuzz", tmp_path, "f", say=lambda _: None, note=notes.append)
    assert notes == [f"shrinking: {left} actions of 20 are left so far" for left in (15, 5)]


@pytest.mark.parametrize(
    ("seed", "done", "said"),
    [
        (None, 0, "before later ran; 0 histories of it done before"),
        (7, 1, "while seed 7 of later ran; 1 history of it done before"),
        (0, 2, "while seed 0 of later ran; 2 histories of it done before"),
    ],
)
def test_an_interrupt_outside_of_a_connector(
    seed: int | None, done: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    say_interrupted(KeyboardInterrupt(), seed, "later", done)
    assert capsys.readouterr() == ("", f"note: interrupted {said}\n")


def test_the_last_actions() -> None:
    rows = [f"  {number:3} step" for number in range(1, 15)]
    assert action_lines(failure(12).history) == rows[:12]
    assert action_lines(failure(13).history) == ["    … 1 before", *rows[1:13]]
    assert action_lines([]) == []


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({}, "kv-sim fuzz --connector a:B --seed 7 --log"),
        ({"extra": "{}", "traits": "x,y"}, "kv-sim fuzz --connector a:B --extra '{}' --traits x,y --seed 7 --log"),
        ({"engine": "vllm"}, "kv-sim fuzz --connector a:B --engine vllm --seed 7 --log"),
        ({"actions": 81}, "kv-sim fuzz --connector a:B --seed 7 --actions 81 --log"),
        (
            {"without": frozenset({Invariant.WORK, Invariant.HITS})},
            "kv-sim fuzz --connector a:B --seed 7 --without HITS,WORK --log",
        ),
    ],
)
def test_the_line_to_paste(options: dict[str, Any], line: str) -> None:
    assert replay_line("a:B", 7, **options) == line


def test_a_file_is_named_by_the_connector_and_the_seed() -> None:
    assert file_stem("a.b:C d/é+x-_1", 7) == "fail-a.b_C_d__+x-_1-7"


def test_subjects_and_what_they_claim() -> None:
    some = {
        "x": Subject("X", traits=frozenset()),
        "later": LATER,
        "both": SUBJECTS["later+flaky"],
        "set": Subject("Y", "y", {"b": 1}, frozenset({Trait.EVENTS, Trait.KEEPS})),
        "peer": Subject("P", traits=frozenset(), serves_peers=True),
        "two": Subject("P", traits=frozenset(), serves_peers=True, engines=2),
        "store": Subject("S", traits=frozenset(), engines=2, shares_store=True),
    }
    claims = "ranks, failures, repeats, zeroing, reset, sleep"
    assert subject_lines(some) == [
        "x      X (installed)",
        "       claims: none",
        "later  LaterConnector (kv_sim.examples.later)",
        f"       claims: {claims}, keeps, clients, images",
        "both   MultiConnector over LaterConnector, FlakyConnector (kv_multi)",
        f"       claims: {claims}, clients, images",
        '       extra config: {"on_child_error": "quarantine"}',
        "set    Y (y)",
        "       claims: keeps, events",
        '       extra config: {"b": 1}',
        *("peer   P (installed)", "       claims: none", "       as with: --serves-peers"),
        *("two    P (installed)", "       claims: none", "       as with: --two-engines"),
        *("store  S (installed)", "       claims: none", "       as with: --shares-store"),
    ]


def test_a_violation() -> None:
    notes = Notes()
    notes.fail(Invariant.NO_CRASH, "m")
    assert notes.told == [str(Violation(Invariant.NO_CRASH, "m"))] == ["NO-CRASH  m"]
    assert [str(invariant) for invariant in Invariant] == [
        name.replace("_", "-") for name in Invariant.__members__
    ]
