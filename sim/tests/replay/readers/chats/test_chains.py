"""Requests that go on from a response: against the same log with whole prompts."""

import json

import pytest
from hypothesis import given
from hypothesis import settings as effort
from hypothesis import strategies as st

from kv_api import ConfigError
from kv_sim.replay.readers.chats import chains
from kv_sim.replay.readers.chats.chains import Chains
from kv_sim.replay.readers.opening import open_trace
from kv_sim.replay.readers.options import TraceOptions, Unsorted


def says(text):
    return [{"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}]


def logged(time, asked, name, answer, **more):
    """As a proxy logs it: what was asked, and the response."""
    usage = {"input_tokens": 9, "output_tokens": len(answer) // 4}
    response = {"id": name, "object": "response", "output": says(answer), "usage": usage, **more}
    return {"timestamp": time, "request": {"model": "m", "stream": True, **asked}, "response": response}


def blocks(tmp_path, records, **options):
    file = tmp_path / "log.jsonl"
    file.write_text("".join(json.dumps(record) + "\n" for record in records))
    trace = open_trace(file, TraceOptions(**options))
    return [(one.arrival_seconds, one.input_tokens, one.output_tokens, one.blocks) for one in trace], trace


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("chains")


words = st.text("ab ", min_size=20, max_size=120)


@effort(max_examples=30)
@given(
    turns=st.lists(st.tuples(st.integers(0, 3), words, words, st.booleans()), min_size=1, max_size=8),
    as_conversation=st.booleans(),
)
def test_prompts_are_those_of_a_log_that_has_them_whole(folder, turns, as_conversation):
    """Each goes on from the turn so many above it, or from the last one of its conversation, or begins anew."""
    added, whole, said = [], [], []
    for number, (back, question, answer, as_items) in enumerate(turns):
        own = [{"role": "user", "content": question}]
        before = said[number - back][0] if 0 < back <= number else []
        asked = {"input": own if as_items else question, "instructions": "be brief"}
        name = f"resp_{number}"
        if as_conversation:
            before = next((items for items, of in reversed(said) if of == back), [])
            asked["conversation"] = {"id": f"conv_{back}"} if as_items else f"conv_{back}"
        elif before:
            asked["previous_response_id"] = f"resp_{number - back}"
        items = [*before, *own]
        said.append(([*items, *says(answer)], back))
        thoughts = {"output": [{"type": "reasoning", "summary": []}, *says(answer)]}
        added.append(logged(number, asked, name, answer, **thoughts))
        whole.append(logged(number, {"input": items, "instructions": "be brief"}, name, answer))
    assert blocks(folder, added)[0] == blocks(folder, whole)[0]


FIRST = logged(0, {"input": "long " * 50}, "resp_0", "an answer " * 10)
NEXT = logged(1, {"input": "and then", "previous_response_id": "resp_0"}, "resp_1", "this")


def test_what_browsers_and_proxies_save_is_gone_on_from_too(tmp_path):
    records = [
        logged(1, {"input": "a" * 90}, "resp_1", "b" * 90),
        logged(2, {"input": "c" * 90, "previous_response_id": "resp_1"}, "resp_2", "d" * 90),
    ]
    entries = [
        {
            "startedDateTime": f"1970-01-01T00:00:0{one['timestamp']}Z",
            "request": {"url": "/v1/responses", "postData": {"text": json.dumps(one["request"])}},
            "response": {"status": 200, "content": {"text": json.dumps(one["response"])}},
        }
        for one in records
    ]
    assert blocks(tmp_path, [{"log": {"entries": entries}}])[0] == blocks(tmp_path, records)[0]


@pytest.mark.parametrize(
    ("kind", "asked", "answered"),
    [
        ({"openinference.span.kind": "LLM"}, "input.value", "output.value"),
        ({"mlflow.spanType": '"CHAT_MODEL"'}, "mlflow.spanInputs", "mlflow.spanOutputs"),
    ],
)
def test_so_is_what_spans_have_of_a_response(tmp_path, kind, asked, answered):
    records = [
        logged(1, {"input": "a" * 90, "instructions": "Be brief."}, "resp_1", "b" * 90),
        logged(2, {"input": "c" * 90, "previous_response_id": "resp_1"}, "resp_2", "d" * 90),
    ]
    spans = [
        {
            "start_time": f"1970-01-01T00:00:0{one['timestamp']}Z",
            "attributes": {**kind, asked: json.dumps(one["request"]), answered: json.dumps(one["response"])},
        }
        for one in records
    ]
    found, whole = blocks(tmp_path, spans)[0], blocks(tmp_path, records)[0]
    assert [(one[0], one[1], one[3]) for one in found] == [(one[0], one[1], one[3]) for one in whole]
    with pytest.raises(ConfigError, match="'resp_1' isn't there, or not with what was answered"):
        blocks(tmp_path, spans[1:])


def test_an_answer_may_be_a_text_or_only_a_count(tmp_path):
    told = {**FIRST["response"], "output": None, "output_text": None}
    counted = {**FIRST, "response": told}
    text = {**counted, "output_text": "an answer " * 10}
    [_, spoken], _ = blocks(tmp_path, [FIRST, NEXT])
    [_, written], _ = blocks(tmp_path, [{**text, "response": {**told, "output_text": "an answer " * 10}}, NEXT])
    [first, unknown], _ = blocks(tmp_path, [counted, NEXT])
    assert abs(spoken[1] - written[1]) < 40 and abs(written[1] - unknown[1]) < 3
    assert len({*first[3]} & {*unknown[3]}) == len(first[3]) - 1, "it begins with the prompt before it"


def test_a_chain_is_a_session_and_a_response_may_be_the_record(tmp_path):
    flat = {"object": "response", "created_at": 1_790_000_000, "model": "m", "usage": {"output_tokens": 2}}
    records = [
        {**flat, "id": "resp_a", "previous_response_id": None, "input": "hello " * 30, "output": says("ok")},
        {**flat, "id": "resp_b", "previous_response_id": "resp_a", "input": "more", "output": says("ok")},
        {**flat, "id": "resp_c", "previous_response_id": None, "input": "other", "output": says("ok")},
    ]
    [one, two, _], trace = blocks(tmp_path, records, sessions=True)
    assert two[1] > one[1] + 3 and two[3][: len(one[3]) - 1] == one[3][:-1]
    assert trace.sessions is not None and trace.sessions.tolist() == [0, 0, 1]


@pytest.mark.parametrize("records", [[NEXT], [NEXT, FIRST]], ids=["not there", "below"])
def test_what_goes_on_from_what_is_not_above_it_is_refused(tmp_path, records):
    with pytest.raises(ConfigError) as caught:
        blocks(tmp_path, records, unsorted=Unsorted.SORT)
    said = str(caught.value).partition("log.jsonl:1: ")[2]
    assert said.startswith(
        "previous_response_id: expected a whole prompt, or one that goes on from a response above"
    )
    assert "and 'resp_0' isn't there, or not with what was answered" in said


def test_what_nobody_says_the_answer_of_is_not_gone_on_from(tmp_path):
    silent = {**FIRST, "response": {"id": "resp_0", "object": "response"}}
    with pytest.raises(ConfigError, match=r"log.jsonl:2: previous_response_id: .* or not with what was answered"):
        blocks(tmp_path, [silent, NEXT])


def test_only_the_latest_texts_are_kept(monkeypatch):
    monkeypatch.setattr(chains, "MOST_KEPT", 500)
    kept = Chains()
    for number in range(9):
        record = logged(number, {"input": "x" * 60}, f"resp_{number}", "y" * 20)
        kept.whole(record, record["request"])
        kept.whole(record, record["request"])
        kept.check()
    assert [*kept._said] == [f"resp_{number}" for number in (7, 8)]
