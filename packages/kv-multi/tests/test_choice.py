"""Who loads: the matched child, what every child is told at allocation, and when the choice is forgotten."""

import pytest
from kv_multi_scripted import Blocks, child, request

from kv_api import CacheHitSource
from kv_multi.choice import Choices
from kv_multi.options import LoadPolicy

BLOCKS = Blocks([1, 2, 3, 4])
R = request()


def set_matches(children, *answers):
    for one, answer in zip(children, answers, strict=True):
        one.answers["get_num_new_matched_tokens"] = answer


@pytest.mark.parametrize(
    ("policy", "answers", "expected", "chosen"),
    [
        ("first", [(0, False), (8, True), (16, False)], (8, True), 1),
        ("first", [(4, False), (8, True), (16, False)], (4, False), 0),
        ("longest", [(4, False), (16, True), (16, False)], (16, True), 1),
        ("longest", [(4, False), (8, True), (16, False)], (16, False), 2),
        ("first", [(0, False), (1, True), (8, False)], (1, True), 1),
        ("longest", [(0, False), (1, True), (1, False)], (1, True), 1),
        ("first", [(0, False), (0, False), (0, False)], (0, False), None),
        ("longest", [(8, False), (0, False), (None, False)], (None, False), None),
        ("first", [(8, False), (8, False), (None, False)], (None, False), None),
    ],
)
def test_the_first_match_or_the_longest_is_taken(scheduler, policy, answers, expected, chosen):
    multi, *children = scheduler(child(), child(), child(), load_policy=policy)
    set_matches(children, *answers)
    assert multi.get_num_new_matched_tokens(R, 4) == expected
    assert all(one.asked("get_num_new_matched_tokens") == [(R, 4)] for one in children)
    if chosen is not None:
        multi.update_state_after_alloc(R, BLOCKS, expected[0])
        told = [one.asked("update_state_after_alloc") for one in children]
        assert told == [[(R, BLOCKS, expected[0] if i == chosen else 0)] for i in range(3)]


def test_none_ends_the_query(scheduler):
    multi, *children = scheduler(child(), child(), child())
    set_matches(children, (8, False), (None, True), (8, False))
    assert multi.get_num_new_matched_tokens(R, 0) == (None, False)
    assert [len(one.asked("get_num_new_matched_tokens")) for one in children] == [1, 1, 0]


@pytest.mark.parametrize("later", [(None, False), (0, False)])
def test_a_query_that_finds_nothing_clears_the_choice(scheduler, later):
    multi, first, second = scheduler()
    set_matches((first, second), (8, False), (0, False))
    multi.get_num_new_matched_tokens(R, 0)
    set_matches((first, second), (0, False), later)
    multi.get_num_new_matched_tokens(R, 0)
    with pytest.raises(RuntimeError, match="no connector was chosen"):
        multi.get_loaded_kv_cache_group_ids(R)
    multi.update_state_after_alloc(R, BLOCKS, 0)
    assert first.asked("update_state_after_alloc") == [(R, BLOCKS, 0)]


def test_the_choice_of_the_last_query_counts(scheduler):
    multi, first, second = scheduler()
    set_matches((first, second), (8, False), (8, False))
    multi.get_num_new_matched_tokens(R, 0)
    set_matches((first, second), (0, False), (8, False))
    multi.get_num_new_matched_tokens(R, 0)
    multi.update_state_after_alloc(R, BLOCKS, 8)
    assert first.asked("update_state_after_alloc") == [(R, BLOCKS, 0)]
    assert second.asked("update_state_after_alloc") == [(R, BLOCKS, 8)]


def test_a_shorter_load_and_none_at_all(scheduler):
    multi, first, second = scheduler()
    set_matches((first, second), (0, False), (8, True))
    multi.get_num_new_matched_tokens(R, 0)
    multi.update_state_after_alloc(R, BLOCKS, 4)
    assert second.asked("update_state_after_alloc") == [(R, BLOCKS, 4)]
    assert set(multi.build_connector_meta("output").loads) == {"r"}
    # The second call, after the load; neither a load nor a miss.
    multi.update_state_after_alloc(R, BLOCKS, 0)
    assert second.asked("update_state_after_alloc")[1:] == [(R, BLOCKS, 0)]
    assert multi.build_connector_meta("output").loads == {}


def test_a_load_that_nobody_offered_is_refused(scheduler):
    multi, *_ = scheduler()
    with pytest.raises(RuntimeError) as caught:
        multi.update_state_after_alloc(R, BLOCKS, 8)
    assert str(caught.value) == (
        "request 'r': the engine loads 8 tokens, but no connector was chosen to load: the last "
        "get_num_new_matched_tokens found nothing"
    )


def test_groups_are_those_of_the_chosen_one(scheduler):
    multi, first, second = scheduler()
    set_matches((first, second), (0, False), (8, True))
    second.answers["get_loaded_kv_cache_group_ids"] = (1, 2)
    multi.get_num_new_matched_tokens(R, 0)
    assert multi.get_loaded_kv_cache_group_ids(R) == (1, 2)
    assert second.calls[-1] == ("get_loaded_kv_cache_group_ids", R)
    assert not first.asked("get_loaded_kv_cache_group_ids")


def test_groups_without_a_choice_are_refused(scheduler):
    multi, *_ = scheduler()
    with pytest.raises(RuntimeError) as caught:
        multi.get_loaded_kv_cache_group_ids(R)
    assert str(caught.value) == (
        "request 'r': the engine asks which KV cache groups its load fills, but no connector was chosen to "
        "load: the last get_num_new_matched_tokens found nothing"
    )


def test_sources_are_those_of_the_chosen_one(scheduler):
    multi, first, second = scheduler()
    assert multi.get_external_cache_hit_sources(R, 8) == {CacheHitSource.EXTERNAL_UNSPECIFIED: 8}
    assert multi.get_external_cache_hit_sources(R, 0) == {}
    set_matches((first, second), (0, False), (8, True))
    second.answers["get_external_cache_hit_sources"] = {CacheHitSource.HOST: 8}
    multi.get_num_new_matched_tokens(R, 0)
    assert multi.get_external_cache_hit_sources(R, 8) == {CacheHitSource.HOST: 8}
    assert second.asked("get_external_cache_hit_sources") == [(R, 8)]


@pytest.mark.parametrize("end", ["request_finished", "on_new_request"])
def test_the_end_of_a_life_forgets_the_choice(scheduler, end):
    multi, first, second = scheduler()
    set_matches((first, second), (8, False), (0, False))
    multi.get_num_new_matched_tokens(R, 0)
    getattr(multi, end)(*((R, [1]) if end == "request_finished" else (R,)))
    with pytest.raises(RuntimeError, match="no connector was chosen"):
        multi.get_loaded_kv_cache_group_ids(R)


def test_a_preemption_does_not(scheduler):
    """Preempted and matched again before the step that reports the preemption is planned."""
    multi, first, second = scheduler()
    set_matches((first, second), (0, False), (8, False))
    multi.get_num_new_matched_tokens(R, 0)
    multi.update_state_after_alloc(R, BLOCKS, 8)
    multi.build_connector_meta("step 1: r runs")
    multi.get_num_new_matched_tokens(R, 0)
    multi.build_connector_meta("step 2: r was preempted")
    multi.update_state_after_alloc(R, BLOCKS, 8)
    assert [args[2] for args in second.asked("update_state_after_alloc")] == [8, 8]


def test_check_recounts():
    choices = Choices(LoadPolicy.FIRST)
    choices.decide("r", 0, [(4, False)])
    choices.check(1)
    with pytest.raises(AssertionError, match="r: child 0 of 0"):
        choices.check(0)
