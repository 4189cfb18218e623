"""The comparison finds every kind of difference that can be planted, and none where there is none."""

import re
from types import SimpleNamespace

import pytest
from kv_vllm_parrots import Parrot, altered

from kv_vllm.differential.comparison import DivergedError, Script, differences, follow
from kv_vllm.differential.trace import (
    COMPARED,
    Abort,
    Add,
    Call,
    NextTurn,
    PoolCall,
    Process,
    Reset,
    Sampled,
    Schedule,
    Turn,
    arguments_of,
)

STEP = {"new": [{"request": "r", "blocks": [[1, 2]], "computed": 0}], "counts": {"r": 5}, "finished": []}
TURNS = [
    Turn(Add("r", (1, 2, 3), 4, None, None, False), [Call("on_new_request", {"request": "r"}, None)]),
    Turn(
        Schedule(1),
        [
            Call("get_num_new_matched_tokens", {"request": "r", "local": 0}, (4, True)),
            Call("update_state_after_alloc", {"request": "r", "blocks": [[1, 2]], "external": 4}, None),
            Call("build_connector_meta", STEP, "opaque"),
        ],
    ),
    Turn(Reset(False, False, True), []),
    Turn(Abort("r", "running"), [Call("request_finished", {"request": "r", "blocks": [[1, 2]]}, (False, None))]),
]


def followed(**methods):
    script = Script()
    return follow(TURNS, type("Other", (Parrot,), methods)(TURNS, script), script)


def test_the_same_calls_agree():
    assert followed() is None


def test_another_argument():
    def blocks(self, turn):
        return [altered(c, blocks=[[1, 3]]) if "external" in c.arguments else c for c in turn.calls]

    found = followed(change=blocks)
    assert (found.turn, found.event, found.details) == (1, Schedule(1), ("blocks[0][1]: 2, made 3",))
    assert "blocks=[[1, 2]]" in found.expected
    assert "blocks=[[1, 3]]" in found.made
    assert "turn 1" in str(found)


def test_a_missing_call():
    found = followed(change=lambda self, turn: turn.calls[:-1])
    assert (found.turn, found.made) == (0, "no further call")
    assert found.expected.startswith("on_new_request")


def test_one_call_too_many():
    found = followed(change=lambda self, turn: [*turn.calls, Call("has_pending_block_frees", {}, False)])
    assert (found.turn, found.expected) == (0, "no further call")
    assert found.made == "has_pending_block_frees()"


@pytest.mark.parametrize("has_work", [True, False])
def test_a_step_without_work(has_work):
    turns, script = [Turn(Schedule(1, has_work), [])], Script()
    assert follow(turns, SimpleNamespace(apply=lambda event: has_work), script) is None
    found = follow(turns, SimpleNamespace(apply=lambda event: not has_work), script)
    said = ["it has no work", "it has work"]
    assert [found.expected, found.made] == said[:: 1 - 2 * has_work]


def test_a_scheduler_that_says_nothing_of_its_work_has_none():
    found = follow([Turn(Schedule(1), [])], SimpleNamespace(apply=lambda event: None), Script())
    assert (found.expected, found.made) == ("it has work", "it has no work")


def test_another_order():
    found = followed(change=lambda self, turn: turn.calls[::-1])
    assert (found.turn, found.made.partition("(")[0]) == (1, "build_connector_meta")
    assert found.expected.startswith("get_num_new_matched_tokens")


def test_another_answer_of_a_reset():
    found = followed(answer=lambda self, event: None)
    assert (found.turn, found.expected, found.made) == (2, "the reset answers True", "it answers None")


@pytest.mark.parametrize("told", [True, False, None])
def test_a_reset_that_is_refused_is_another_than_one_that_raises(told):
    turns = [Turn(Reset(False, False, told), [])]
    agrees = [
        answer
        for answer in (True, False, None)
        if follow(turns, SimpleNamespace(apply=lambda event, said=answer: said), Script()) is None
    ]
    assert agrees == [told]


@pytest.mark.parametrize("error", [AssertionError, KeyError])
def test_an_error(error):
    def refuse(self, turn):
        if isinstance(turn.event, Abort):
            raise error("no such request")
        return turn.calls

    found = followed(change=refuse)
    assert (found.turn, found.expected) == (3, "no error")
    assert "no such request" in found.made
    assert re.search(r"in refuse:\d+$", found.made)


def test_after_a_difference_nothing_is_compared():
    found = followed(change=lambda self, turn: [])
    assert found.turn == 0


@pytest.mark.parametrize(
    ("made", "line"),
    [
        ({**STEP, "finished": ["q"]}, "finished: [], made ['q']"),
        ({**STEP, "counts": {"r": 4}}, "counts.r: 5, made 4"),
        ({**STEP, "counts": {"r": 5, "q": 1}}, "counts.q: 'nothing', made 1"),
        ({**STEP, "new": [{**STEP["new"][0], "computed": 4}]}, "new[0].computed: 0, made 4"),
    ],
)
def test_differences_name_the_place(made, line):
    assert differences(STEP, STEP) == []
    assert differences(STEP, made) == [line]


@pytest.mark.parametrize(
    ("expected", "made", "lines"),
    [
        ([1, 2], [1], ["x: [1, 2], made [1]"]),
        ([1], "1", ["x: [1], made '1'"]),
        ([1], 1, ["x: [1], made 1"]),
        ("1", [1], ["x: '1', made [1]"]),
        ({"a": 1}, [1], ["x: {'a': 1}, made [1]"]),
        ([1], {"a": 1}, ["x: [1], made {'a': 1}"]),
        (
            {"a": 1, "b": 2},
            {"b": 3, "c": 4},
            ["x.a: 1, made 'nothing'", "x.b: 2, made 3", "x.c: 'nothing', made 4"],
        ),
        ([[1, 2], [3]], [[1, 5], [4]], ["x[0][1]: 2, made 5", "x[1][0]: 3, made 4"]),
    ],
)
def test_values_of_any_form_are_compared(expected, made, lines):
    assert differences(expected, made, "x") == lines
    assert differences(expected, expected, "x") == []


def test_what_was_done_to_the_pool_in_a_call_is_done_before_its_answer():
    done = []
    calls = [PoolCall("touch", (1, 2)), PoolCall("evict_blocks", (3,))]
    script = Script(done.append)
    script.load([Call("reset_cache", {}, True, tuple(calls)), Call("reset_cache", {}, False)])
    assert (script.call("reset_cache"), done) == (True, calls)
    assert (script.call("reset_cache"), done) == (False, calls)


def test_nothing_is_done_to_the_pool_in_another_call():
    done = []
    script = Script(done.append)
    script.load([Call("on_new_request", {"request": "r"}, None, (PoolCall("touch", (1,)),))])
    with pytest.raises(DivergedError):
        script.compare("on_new_request", {"request": "q"})
    assert done == []


def test_a_call_is_answered_as_it_was():
    script = Script()
    with pytest.raises(DivergedError) as raised:  # before the first turn nothing is expected
        script.call("reset_cache")
    assert (raised.value.expected, raised.value.made) == ("no further call", "reset_cache()")
    script.load([Call("reset_cache", {}, False), Call("has_pending_block_frees", {}, True)])
    assert (script.call("reset_cache"), script.call("has_pending_block_frees")) == (False, True)
    script.end()


def test_a_difference_says_what_it_is():
    assert str(DivergedError("a()", "b()")) == "expected a(), made b()"


def test_the_order_of_scheduled_requests_is_a_difference():
    script = Script()
    script.load([Call("build_connector_meta", {"counts": {"a": 1, "b": 1}}, None)])
    with pytest.raises(DivergedError) as raised:
        script.compare("build_connector_meta", {"counts": {"b": 1, "a": 1}})
    assert raised.value.details == ("counts: order ['a', 'b'], made ['b', 'a']",)
    assert differences({"a": 1, "b": 1}, {"b": 1, "a": 2}) == ["arguments: order ['a', 'b'], made ['b', 'a']"]


def test_objects_of_any_engine_are_reduced_alike():
    request = SimpleNamespace(request_id="r", num_tokens=9, num_computed_tokens=4, block_hashes=[b"h", b"i"])
    blocks = SimpleNamespace(get_block_ids=lambda: ([1, 2], (3,)))
    plain = {"request": "r", "tokens": 9, "computed": 4, "hashes": 2}
    assert arguments_of("on_new_request", [request]) == plain
    assert arguments_of("get_num_new_matched_tokens", [request, 8]) == {**plain, "local": 8}
    assert arguments_of("get_loaded_kv_cache_group_ids", [request]) == {"request": "r"}
    assert arguments_of("get_loaded_kv_cache_group_ids", []) == {"request": None}
    assert arguments_of("has_pending_block_frees", []) == arguments_of("reset_cache", []) == {}
    assert arguments_of("update_state_after_alloc", [request, blocks, 4]) == {
        **plain,
        "blocks": [[1, 2], [3]],
        "external": 4,
    }
    ended = SimpleNamespace(**vars(request), status=SimpleNamespace(name="FINISHED_ABORTED"))
    plain_end = {**plain, "status": "FINISHED_ABORTED"}
    assert arguments_of("request_finished", [ended, (1, 2)]) == {**plain_end, "blocks": [[1, 2]]}
    assert arguments_of("request_finished_all_groups", [ended, ((1,), (2,))]) == {
        **plain_end,
        "blocks": [[1], [2]],
    }
    report = SimpleNamespace(
        finished_sending={"b", "a"}, finished_recving=None, failed_recving=set(), invalid_block_ids={8, 1}
    )
    joined = {"finished_sending": ["a", "b"], "invalid_block_ids": [1, 8]}  # the set gives the 8 first
    assert arguments_of("update_connector_output", [report]) == {"report": joined}


@pytest.mark.parametrize("preempted", [("d", "c"), None])
def test_a_step_is_reduced_to_what_both_engines_know(preempted):
    """What vLLM has in sets is sorted. Here it is in tuples, whose order is the same in every process."""
    new = SimpleNamespace(req_id="a", block_ids=([1, 2], (3,)), num_computed_tokens=4)
    cached = SimpleNamespace(
        req_ids=["b", "c"],
        new_block_ids=[([5], ()), None],
        num_computed_tokens=[6, 7],
        num_output_tokens=[8, 9],
        resumed_req_ids=("c", "b"),
    )
    output = SimpleNamespace(
        scheduled_new_reqs=[new],
        scheduled_cached_reqs=cached,
        num_scheduled_tokens={"c": 1, "a": 2},
        scheduled_spec_decode_tokens={"c": [7, 7]},
        finished_req_ids=("z", "y"),
        preempted_req_ids=preempted,
        has_sync_kv_loads=True,
    )
    assert arguments_of("build_connector_meta", [output]) == {
        "new": [{"request": "a", "blocks": [[1, 2], [3]], "computed": 4}],
        "cached": [
            {"request": "b", "new_blocks": [[5], []], "computed": 6, "output": 8},
            {"request": "c", "new_blocks": None, "computed": 7, "output": 9},
        ],
        "resumed": ["b", "c"],
        "counts": {"c": 1, "a": 2},
        "drafts": {"c": 2},
        "finished": ["y", "z"],
        "preempted": ["c", "d"] if preempted else [],
        "loads_in_step": True,
    }


@pytest.mark.parametrize(
    ("report", "has_failed"),
    [
        ({}, False),
        ({"finished_recving": ["a"]}, False),
        ({"failed_recving": ["a"]}, True),
        ({"invalid_block_ids": [1]}, True),
    ],
)
def test_which_reports_have_failed_loads(report, has_failed):
    assert Process(1, {}, report).has_failed_loads is has_failed


def test_what_an_event_is_when_nothing_else_is_said():
    assert Add("r", (1,), 2, None, None, False) == Add("r", (1,), 2, None, None, False, is_session=False)
    assert NextTurn("r", ()) == NextTurn("r", (), max_tokens=1)
    assert Sampled((1,), ends=True) == Sampled((1,), ends=True, surplus=0)
    assert Process(1, {}, {}) == Process(1, {}, {}, shares_failed_blocks=False, stops_preempted=False)


def test_an_unknown_call_is_named():
    with pytest.raises(ValueError, match=r"unknown call 'get_finished'; known: build_connector_meta, "):
        arguments_of("get_finished", [])
    assert "get_finished" not in COMPARED
