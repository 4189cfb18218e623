"""A request of a trace as an engine holds it: its blocks' numbers, and the tokens that nobody made."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kv_api import Request
from kv_sim.replay.timed.engine.arrivals import NEVER, HandedArrivals
from kv_sim.replay.timed.engine.request import Names, Tokens, TracedRequest
from kv_sim.replay.trace import TraceRequest


def held(index: int, tokens: int, outputs: int, ids: list[int], names: Names) -> TracedRequest:
    return TracedRequest(index, TraceRequest(index * 1e-3, tokens, outputs, tuple(ids)), names, 4)


def test_blocks_that_the_trace_names_are_shared_and_all_others_are_a_requests_own() -> None:
    names = Names(parts=2)
    first, second = held(0, 19, 3, [7, 8, 9], names), held(1, 16, 5, [7, 5], names)
    # Of 22 tokens there are six blocks: the trace's are two each, and the fifth is not full of its prompt.
    own = [Names.own(0, place) for place in (4, 5)]
    assert first.numbers == [0, 2, 4, 6, *own]
    assert second.numbers == [0, 2, 8, 10, *(Names.own(1, place) for place in (4, 5))]
    assert held(2, 40, 1, [8], names).numbers == [4, 6, *(Names.own(2, place) for place in range(2, 11))]
    assert held(3, 11, 1, [7, 8], names).numbers == [0, 2, Names.own(3, 2)]
    assert own == [0b1001, 0b1011] and Names.own(1, 0) == 1 << 25 | 1
    assert first.hashes_up_to(22) == [number.to_bytes(8, "big") for number in first.numbers[:5]]
    assert first.times.arrival == 0 and second.times.arrival == 1_000_000
    assert first.hashes.size == 0, "nobody looks at contents"
    first.write_contents()
    first.forget_blocks()
    assert (first.numbers, list(first.hashes_up_to(22)), first.hashes.size) == ([], [], 0)


def test_of_requests_that_are_sent_on_for_one_moment_the_first_is_the_first_to_arrive() -> None:
    names, arrivals = Names(), HandedArrivals()
    for index, moment in enumerate((20, 10, 20, 10, 10)):
        arrivals.hand(held(index, 4, 1, [1], names), moment)
    came = []
    while arrivals.moment != NEVER:
        came.append((arrivals.moment, arrivals.take().index))
    assert came == [(10, 1), (10, 3), (10, 4), (20, 0), (20, 2)]


def test_a_connector_can_read_all_of_it() -> None:
    request = held(5, 6, 2, [1], Names())
    names = [name for name, member in vars(Request).items() if isinstance(member, property)]
    request.num_output_tokens = 1
    values = {name: getattr(request, name) for name in names}
    assert (values["request_id"], values["num_tokens"], values["num_prompt_tokens"]) == ("5", 7, 6)
    tokens = list(Tokens(request.numbers, 4, 7))
    assert (list(values["all_token_ids"]), list(request.prompt_token_ids)) == (tokens, tokens[:6])
    assert [name for name in names if values[name] is None] == ["cache_salt", "lora_request", "kv_transfer_params"]


def test_every_slot_of_two_requests_holds_something_else_but_for_what_they_share() -> None:
    names = Names()
    requests = [held(0, 10, 3, [1, 2], names), held(1, 8, 1, [1, 3], names)]
    for request in requests:
        request.write_contents()
    first, second = (request.hashes.tolist() for request in requests)
    assert (len(first), len(second)) == (16, 12)
    assert first[:4] == second[:4]
    assert len({*first, *second}) == 16 + 12 - 4


@given(st.integers(1, 30), st.integers(1, 5), st.data())
def test_tokens_are_a_sequence(length: int, size: int, data: st.DataObject) -> None:
    numbers = list(range(100, 100 + -(-length // size)))
    tokens = Tokens(numbers, size, length)
    listed = list(tokens)
    assert len(tokens) == len(listed) == length
    assert listed == [Tokens([numbers[at // size]], size, size)[at % size] for at in range(length)]
    assert [tokens[at] for at in range(-length, length)] == listed + listed
    start, stop = data.draw(st.integers(-35, 35)), data.draw(st.integers(-35, 35))
    assert tokens[start:stop] == listed[start:stop]
    assert tokens[::-2] == listed[::-2]
    for index in (length, -length - 1):
        with pytest.raises(IndexError) as caught:
            tokens[index]
        assert str(caught.value) == f"token {index} of {length}"


def test_equal_tokens_are_rare_and_small() -> None:
    tokens = list(Tokens(range(64), 16, 1024))
    assert len(set(tokens)) > 1000 and min(tokens) >= 0 and 90_000 < max(tokens) < 100_000
