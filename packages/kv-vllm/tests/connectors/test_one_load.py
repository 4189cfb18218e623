"""After an asynchronous load that may have failed, no other one is offered before the request was computed."""

import pytest

from kv_vllm.connectors.one_load import OneLoad

BETWEEN, IN_STEP = (4, True), (4, False)


@pytest.fixture
def after_a_load():
    """Request "a" got blocks for an asynchronous load."""
    one_load = OneLoad()
    assert one_load.answer("a", BETWEEN) == BETWEEN
    one_load.give("a", 4)
    return one_load


@pytest.mark.parametrize(
    ("match", "answer"),
    [
        (BETWEEN, (0, False)),
        ((None, False), (0, False)),
        ((None, True), (0, False)),
        (IN_STEP, IN_STEP),
        ((0, False), (0, False)),
    ],
)
def test_only_a_load_within_the_step_is_offered_next(after_a_load, match, answer):
    assert after_a_load.answer("a", match) == answer
    assert after_a_load.answer("a", match) == answer, "it may be asked again before it gets blocks"


def test_what_others_are_offered_is_their_own_matter(after_a_load):
    for match in (BETWEEN, (None, False), IN_STEP):
        assert after_a_load.answer("b", match) == match


@pytest.mark.parametrize(("match", "tokens"), [(BETWEEN, 0), (IN_STEP, 4), ((0, False), 0)])
def test_who_got_blocks_for_no_such_load_may_have_one(after_a_load, match, tokens):
    after_a_load.answer("a", match)
    after_a_load.give("a", tokens)
    assert after_a_load.answer("a", BETWEEN) == BETWEEN


def test_nor_has_one_who_did_not_take_what_was_offered():
    one_load = OneLoad()
    one_load.give("b", 4)
    one_load.answer("a", BETWEEN)
    one_load.give("a", 0)
    assert [one_load.answer(name, BETWEEN) for name in "ab"] == [BETWEEN] * 2


def test_an_allocation_is_for_the_load_that_was_offered_last():
    one_load = OneLoad()
    one_load.answer("a", BETWEEN)
    one_load.answer("b", IN_STEP)
    one_load.give("b", 4)
    assert one_load.answer("b", BETWEEN) == BETWEEN


def test_whose_id_comes_again_may_have_one(after_a_load):
    after_a_load.forget(["b", "a"])
    assert after_a_load.answer("a", BETWEEN) == BETWEEN
