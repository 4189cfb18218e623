"""The end of a request: all are told, parameters are merged, groups are respected."""

import pytest
from kv_multi_scripted import child, request

from kv_multi import ParamsClashError
from kv_multi.params import merge_params

R = request()


@pytest.mark.parametrize(
    ("params", "merged"),
    [
        ((None, None, None), None),
        ((None, {}, None), {}),
        (({"a": 1}, None, {"b": 2}), {"a": 1, "b": 2}),
    ],
)
def test_parameters_are_merged(scheduler, params, merged):
    multi, *_ = scheduler(*[child(answers={"request_finished": (False, own)}) for own in params])
    assert multi.request_finished(R, [1]) == (False, merged)


def test_the_childrens_parameters_stay_as_they_are(scheduler):
    own = {"a": 1}
    multi, *_ = scheduler(
        child(answers={"request_finished": (False, own)}), child(answers={"request_finished": (False, {"b": 2})})
    )
    multi.request_finished(R, [1])
    assert own == {"a": 1}


@pytest.mark.parametrize(
    ("last", "named"),
    [
        ({"c": 0, "a": 0}, "'two' and 'three' both set 'c'"),
        ({"a": 0, "c": 0, "x": 0, "b": 0}, "'one' and 'three' both set 'a', 'b'"),
    ],
)
def test_the_first_key_says_with_whom(last, named):
    with pytest.raises(ParamsClashError) as caught:
        merge_params({"one": {"a": 1, "b": 1}, "two": {"c": 2}, "three": last})
    assert str(caught.value) == f"kv_transfer_params: connectors {named}"


def test_two_that_say_the_same_under_one_key_clash_too():
    with pytest.raises(ParamsClashError) as caught:
        merge_params({"one": {"a": 1}, "two": {"a": 1}})
    assert str(caught.value) == "kv_transfer_params: connectors 'one' and 'two' both set 'a'"


def test_a_clash_names_both(scheduler):
    multi, first, second, third = scheduler(
        child(answers={"request_finished": (False, {"a": 1})}),
        child(answers={"request_finished": (True, {"b": 1, "c": 1, "d": 1})}),
        child(answers={"request_finished": (False, {"d": 2, "c": 2})}, name="far"),
    )
    with pytest.raises(ParamsClashError) as caught:
        multi.request_finished(R, [1])
    assert str(caught.value) == "kv_transfer_params: connectors 'Scripted1' and 'far' both set 'd', 'c'"
    assert isinstance(caught.value, RuntimeError)
    assert all(one.asked("request_finished") for one in (first, second, third))
    assert multi.build_connector_meta("output").async_saves == {"r": (1,)}


def test_all_groups_when_all_know_them(scheduler):
    multi, *children = scheduler(child("ScriptedHMA"), child("ScriptedHMA"))
    children[1].answers["request_finished_all_groups"] = (True, {"a": 1})
    assert multi.request_finished_all_groups(R, ([1], [2])) == (True, {"a": 1})
    for one in children:
        assert one.calls == [("request_finished_all_groups", R, ([1], [2]))]


def test_one_group_when_some_do_not(scheduler):
    multi, *children = scheduler(child("ScriptedHMA"), child())
    assert multi.request_finished_all_groups(R, ([1],)) == (False, None)
    for one in children:
        assert one.calls == [("request_finished", R, [1])]


def test_several_groups_need_all(scheduler):
    multi, *_ = scheduler(child("ScriptedHMA"), child(), child(name="far"))
    assert multi.request_finished_all_groups(R, ([1],)) == (False, None)
    with pytest.raises(RuntimeError) as caught:
        multi.request_finished_all_groups(R, ([1], [2]))
    assert str(caught.value) == (
        "request 'r' has blocks of 2 KV cache groups, but these connectors support only one: Scripted1, far"
    )
