"""What stands beside prompts: what a model was told first, what was said before, and when."""

import json

import pytest
from kv_sim_foreign_traces import SAID, lengths, user

from kv_api import ConfigError
from kv_sim.replay.readers.opening import open_trace
from kv_sim.replay.readers.options import TraceOptions
from kv_sim.replay.readers.requests.sharing import parse_sharing
from kv_sim.replay.readers.unknown.likely_columns import likely_columns
from kv_sim.replay.readers.unknown.own_columns import parse_columns

Q = "What is the meaning of it?"
RULES = "Answer in one sentence, and politely. " * 20
ANSWER = {"role": "assistant", "content": "Yes. " * 20}
BESIDE = "which isn't counted: a prompt must have all that a model was asked"
APART = (
    "later turns of sessions don't begin with the prompt before: if each is only what it adds, prompts are longer "
    "(--turns added)"
)
ENDS = "with an answer: if each is a whole conversation, use --format conversations-dated"


def asked(number):
    return f"What is the meaning of number {number}? " * 8


def beginnings(requests):
    """How many of the first blocks all have."""
    return sum(len({*ids}) == 1 for ids in zip(*(one.blocks for one in requests), strict=False))


# What a model was told first


@pytest.mark.parametrize("field", ["system", "system_prompt", "instructions"])
def test_what_a_model_was_told_first_is_the_begin_of_a_prompt(read, field):
    records = [{"timestamp": number, "prompt": asked(number), field: RULES} for number in range(3)]
    requests, notes = read(*records)
    assert notes[0] == "format: vllm"
    assert beginnings(requests) >= len(RULES) // 64
    assert all(one.input_tokens > len(RULES + asked(0)) // 4 for one in requests)
    alone, _ = read(*({name: value for name, value in one.items() if name != field} for one in records))
    assert beginnings(alone) <= 2


def test_so_it_is_where_an_api_is_asked_to_go_on(read):
    records = [{"body": {"prompt": [asked(1), asked(2)], "system_prompt": RULES}}]
    requests, notes = read(*records)
    assert notes[0] == "format: openai" and len(requests) == 2
    assert beginnings(requests) >= len(RULES) // 64


@pytest.mark.parametrize("told", [{"cores": 8}, None, "", ["a"], 5])
def test_what_is_no_text_is_nothing_that_a_model_was_told(read, told):
    assert read({"prompt": asked(1), "system": told}) == read({"prompt": asked(1)})


def test_token_ids_are_all_that_a_model_was_asked(read):
    [request], _ = read({"prompt_token_ids": [*range(40)], "system": RULES})
    assert request.input_tokens == 40
    [request], _ = read({"prompt": [*range(40)], "system": RULES})
    assert request.input_tokens == 40


def test_messages_have_it_once(read):
    told = [{"role": "system", "content": RULES}]
    apart = [{"timestamp": 1, "system_prompt": RULES, "messages": [user(asked(1))], "max_tokens": 5}]
    twice = [{"timestamp": 1, "system_prompt": RULES, "messages": [*told, user(asked(1))], "max_tokens": 5}]
    once = [{"timestamp": 1, "messages": [*told, user(asked(1))], "max_tokens": 5}]
    [first], [second], [third] = (read(*records)[0] for records in (apart, twice, once))
    assert second == third
    assert abs(first.input_tokens - third.input_tokens) <= 4
    [spoken], _ = read({"system_prompt": RULES, "conversations": [user(asked(1)), ANSWER]})
    [alone], _ = read({"conversations": [user(asked(1)), ANSWER]})
    assert spoken.input_tokens - alone.input_tokens >= len(RULES) // 4


@pytest.mark.parametrize(
    ("record", "columns"),
    [
        (
            {"time": 1, "system_prompt": RULES, "user_prompt": Q},
            "time=time,prompt=system_prompt+user_prompt",
        ),
        ({"SystemMessage": RULES, "query": Q}, "prompt=SystemMessage+query"),
        (
            {"system_prompt": "", "question": Q, "answer": "b"},
            "prompt=system_prompt+question,answer=answer",
        ),
        ({"system": {"cores": 8}, "question": Q}, "prompt=question"),
        ({"system": RULES, "isl": 5}, "input=isl"),
    ],
)
def test_a_line_to_paste_has_it(record, columns):
    assert likely_columns(record) == columns


# What keeps prompts apart


@pytest.mark.parametrize("within", [lambda one: one, lambda one: {"body": one}], ids=["prompt", "body"])
@pytest.mark.parametrize("prompt", [{"prompt": RULES}, {"messages": [user(RULES)]}, {"prompt": [*range(64)]}])
def test_prompts_with_other_salts_share_no_blocks(read, within, prompt):
    salts = ("a", "b", "a", None)
    requests, notes = read(*(within({**prompt, "cache_salt": salt}) for salt in salts))
    first, second, third, last = (one.blocks for one in requests)
    assert first == third and len({*first, *second, *last}) == 3 * len(first) > 3
    assert (
        "prompts have 3 different salts (cache_salt), and share blocks only with prompts of the same salt" in notes
    )
    requests, notes = read(*(within({**prompt, "cache_salt": "a"}) for _ in salts))
    assert len({one.blocks for one in requests}) == 1 and not any("salt" in note for note in notes)
    requests, _ = read(within({**prompt, "cache_salt": "a"}), within({"prompt": "", "cache_salt": "a"}))
    assert [one.blocks for one in requests] == [first, ()]


@pytest.mark.parametrize(
    ("cached", "left"), [(True, 1), ("true", 1), (False, 2), (None, 2), (1, 2), (300, 2), ("x", 2)]
)
def test_what_a_gateway_s_cache_answered_is_left_out(read, cached, left):
    records = [{"created_at": n, "request": {"messages": [user(Q)]}} for n in range(2)]
    requests, notes = read(records[0], {**records[1], "cached": cached})
    assert len(requests) == left
    said = "1 request was left out: answered by the gateway's own cache (cached)"
    assert (said in notes) == (left == 1)


@pytest.mark.parametrize("packed", [lambda one: one, json.dumps], ids=["object", "text"])
@pytest.mark.parametrize("field", ["messages", "input"])
def test_a_path_that_a_prompt_speaks_of_is_none_that_was_asked(read, packed, field):
    said = [user(f"{Q} Is it /v1/messages/count_tokens, /tokenize or /v1/embeddings?")]
    requests, notes = read(*({"created_at": n, "request": packed({"model": "m", field: said})} for n in range(2)))
    assert len(requests) == 2 and not any("left out" in note for note in notes)


@pytest.mark.parametrize(
    "request_to",
    [
        {"request": "POST /v1/messages/count_tokens HTTP/1.1", "request_body": {"messages": [user(Q)]}},
        {"request": {"url": "http://a/tokenize", "body": {"prompt": Q}}},
    ],
)
def test_a_path_that_was_asked_is_seen_in_its_request(read, request_to):
    requests, notes = read({"created_at": 0, "request": {"messages": [user(Q)]}}, {"created_at": 1, **request_to})
    said = "1 request was left out: asked only how many tokens a prompt has (count_tokens, tokenize)"
    assert len(requests) == 1 and said in notes


@pytest.mark.parametrize("columns", ["prompt=said", "input=length"])
@pytest.mark.parametrize(
    ("told", "why"),
    [
        ({"cached": True}, "answered by the gateway's own cache (cached)"),
        ({"cache_status": "HIT"}, "answered by the gateway's own cache (cache_status)"),
        ({"span_attributes": {"type": "task"}}, "a span that is no request to a model (span_attributes)"),
        ({"span_attributes": '{"type": "tool"}'}, "a span that is no request to a model (span_attributes)"),
    ],
)
def test_what_no_model_answered_is_left_out_whatever_columns_are_called(read, columns, told, why):
    """Even if it lacks them."""
    row = {"said": asked(1), "length": 40}
    requests, notes = read(
        *({**row, **dict.fromkeys(told)}, {**row, **told}, told),
        columns=parse_columns(columns),
        sharing=None if "prompt" in columns else parse_sharing("none"),
    )
    assert len(requests) == 1 and f"2 requests were left out: {why}" in notes


def test_adapters_are_models(read):
    adapters = ("a", "b", "a")
    records = [{"inputs": RULES, "parameters": {"adapter_id": one, "max_new_tokens": 5}} for one in adapters]
    (first, second, third), notes = read(*records)
    assert first.blocks == third.blocks and not {*first.blocks} & {*second.blocks}
    assert "requests of 2 models, none of which can use another's blocks: a, b" in notes


def test_functions_come_first_as_tools_do(read):
    tools = [{"name": "look", "description": RULES, "parameters": {}}]
    asked_so = [{"timestamp": n, "messages": [user(asked(n))], "functions": tools} for n in range(3)]
    assert beginnings(read(*asked_so)[0]) >= len(RULES) // 64
    for one in asked_so:
        one["messages"].insert(0, {"role": "system", "content": RULES})
    assert beginnings(read(*asked_so)[0]) >= 2 * len(RULES) // 64, "also before a system's message"


def test_messages_beside_a_prompt_are_the_whole_of_it(read):
    """UltraChat's: its prompt is what was said first."""
    talk = [user(asked(1)), ANSWER, user(asked(2)), ANSWER]
    requests, notes = read({"prompt": asked(1), "prompt_id": "a", "messages": talk})
    assert notes[0] == "format: conversations" and len(requests) == 2
    [request], notes = read({"timestamp": 1, "prompt": asked(2), "messages": talk[:3], "max_tokens": 5})
    [whole], _ = read({"timestamp": 1, "messages": talk[:3], "max_tokens": 5})
    assert notes[0] == "format: openai" and request == whole
    [request], notes = read({"prompt_token_ids": [1, 2], "prompt": asked(1), "messages": talk})
    assert notes[0] == "format: vllm" and request.input_tokens == 2
    [request], notes = read({"prompt": asked(1), "messages": []})
    assert notes[0] == "format: vllm" and request.input_tokens == len(asked(1)) // 4


def test_counts_by_ollama_s_and_llama_cpp_s_names(read):
    [request], notes = read({"created_at": 1, "messages": [user(Q)], "prompt_eval_count": 900, "eval_count": 80})
    assert request.output_tokens == 80 and any(note.startswith("usage says 900 prompt") for note in notes)
    [request], _ = read({"prompt": Q, "tokens_predicted": 70})
    assert request.output_tokens == 70


def test_a_prompt_that_is_messages_is_a_chat(read):
    told = [{"role": "system", "content": RULES}, user(Q)]
    [asked_so], notes = read({"prompt": told, "completion": [ANSWER]})
    assert notes[0] == "format: vllm"
    [usual], _ = read({"messages": told, "max_tokens": 5})
    assert asked_so.blocks == usual.blocks
    with pytest.raises(
        ConfigError, match=r"prompt: expected text, a list of token ids, or a list of such prompts, got"
    ):
        read({"prompt": [user(Q), {"content": "b"}]})


# What was said before


@pytest.mark.parametrize("field", ["history", "chat_history", "context", "previous_messages", "suffix"])
def test_what_may_belong_to_a_prompt_is_said(read, field):
    records = [{"timestamp": number, "prompt": SAID, field: ["q", "a"] * number} for number in range(3)]
    assert f"2 prompts have a {field} beside, {BESIDE}" in read(*records)[1]
    assert not any(BESIDE in note for note in read(*records[:1])[1]), "there was nothing before"
    assert f"1 prompt has a {field} beside, {BESIDE}" in read(*records[:2])[1]


def test_token_ids_have_what_was_said_before(read):
    for prompt in SAID, [user(Q)]:
        [request], notes = read({"prompt": prompt, "prompt_token_ids": [1, 2], "context": [1, 2]})
        assert request.input_tokens == 2 and not any(BESIDE in note for note in notes)


def turns(*prompts):
    return [{"timestamp": at, "prompt": one, "session_id": f"s{at % 2}"} for at, one in enumerate(prompts)]


def test_turns_that_never_go_on_are_said(read):
    assert APART in read(*turns(*"abcd"))[1]
    requests, notes = read(*turns("a", "b", "c", "d"), format="vllm")
    assert len(requests) == 4 and APART in notes


@pytest.mark.parametrize(
    "records",
    [
        turns("a", "b", "a, and c", "d"),  # one of two goes on
        turns("a, and c", "b", "a", "d"),  # the newest first
        turns("a", "b"),  # there is no later turn
        turns("a", "b", "a", "b"),  # each was tried again
        [{"timestamp": at, "prompt": prompt} for at, prompt in enumerate("abcd")],
        turns([1, 2], [3], [1, 2, 4], [5]),
    ],
)
def test_turns_that_go_on_are_not_spoken_of(read, records):
    assert APART not in read(*records)[1]


def test_turns_of_chats_go_on_behind_their_roles(read):
    chats = [[user("a")], [user("a"), ANSWER, user("b")], [user("a"), ANSWER, user("b"), ANSWER, user("c")]]
    records = [{"timestamp": n, "session_id": "s", "messages": one} for n, one in enumerate(chats)]
    assert APART not in read(*records)[1]
    records = [{"timestamp": n, "session_id": "s", "messages": one[-1:]} for n, one in enumerate(chats)]
    assert APART in read(*records)[1]
    tokens = [{"timestamp": n, "session_id": "s", "prompt": prompt} for n, prompt in enumerate(([1, 2], [3, 4]))]
    assert APART in read(*tokens)[1]
    tokens[1]["prompt"] = "3, 4"
    assert APART in read(*tokens)[1], "one is text"


# Whole conversations with a time


def test_prompts_that_end_with_an_answer_are_said(read):
    talk = [user("a"), ANSWER, user("b"), ANSWER]
    records = [{"created": 1_770_000_000 + n, "messages": talk} for n in range(2)]
    requests, notes = read(*records)
    assert len(requests) == 2 and f"2 prompts end {ENDS}" in notes
    requests, notes = read(*records, format="conversations-dated")
    assert len(requests) == 4 and not any(ENDS in note for note in notes)
    assert f"1 prompt ends {ENDS}" in read(records[0], {**records[1], "messages": talk[:3]})[1]


@pytest.mark.parametrize(
    "more", [{"max_tokens": 5}, {"usage": {"completion_tokens": 5}}, {"response": {"id": "r"}}, {"stream": True}]
)
def test_an_answer_that_a_model_is_to_go_on_with_is_not_spoken_of(read, more):
    _, notes = read({"timestamp": 1, "messages": [user("a"), ANSWER], **more})
    assert not any(ENDS in note for note in notes)


# When


@pytest.mark.parametrize(
    ("field", "times"),
    [
        ("timestamp_ms", [1_772_359_200_000, 1_772_359_202_500]),
        ("timestampMs", ["1000", "3500"]),
        ("timestamp_ms", ["2026-03-01T10:00:00Z", "2026-03-01T10:00:02.500Z"]),
        ("request_time", ["2026-03-01 10:00:00", "2026-03-01 10:00:02.500"]),
    ],
)
def test_a_time_may_be_called_by_its_unit_or_by_what_is_a_duration_elsewhere(read, field, times):
    requests, notes = read(*({field: time, "prompt": SAID} for time in times))
    assert [one.arrival_seconds for one in requests] == [0, 2.5]
    assert not any("time" in note for note in notes)


def test_the_time_of_a_record_comes_before_how_long_its_request_took(read):
    requests, _ = read(*({"ts": 5 + n, "request_time": 0.25, "prompt": SAID} for n in range(2)))
    assert [one.arrival_seconds for one in requests] == [0, 1]
    _, notes = read(*({"request_time": 0.25, "prompt": SAID} for n in range(2)))
    assert "the trace has no times: one request a second is assumed" in notes


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"logged_ms": 1_772_359_200_000}, " (if logged_ms is the time, call it timestamp)"),
        ({"date": "2026-03-01", "request_time": 1_772_359_200.5},
         " (if date or request_time is the time, call it timestamp)"),
        ({"time_ns": 1_772_359_200_000_000_000, "TimeUs": 1_772_359_200_000_000},
         " (if time_ns or TimeUs is the time, call it timestamp)"),
        ({"time_of_it": 1_000_000_000}, " (if time_of_it is the time, call it timestamp)"),
        ({"msec": "1772359200.123"}, " (if msec is the time, call it timestamp)"),
        ({"response": {"created": 1_772_359_200}, "about": {"seen": "2026-03-01T10:00:00Z"}},
         " (if response.created or about.seen is the time, call it timestamp)"),
        ({"time_left": 4_000_000_000, "timed": 999_999_999}, ""),
        ({"response": {"id": 1_772_359_200, "time": [1_772_359_200]}, "times": "soon"}, ""),
        ({"execution_time_ms": 900, "seed": 1_772_359_200, "timed": True, "time_left": -1}, ""),
    ],
)  # fmt: skip
def test_times_by_other_names_are_named(read, more, said):
    _, notes = read({"prompt": SAID, **more})
    assert f"the trace has no times: one request a second is assumed{said}" in notes


@pytest.mark.parametrize(
    ("header", "row", "said"),
    [
        ("timestamp,prompt", f'"3/1/2026, 10:00:00 PM",{asked(1)}',
         "--columns prompt=prompt; timestamp ('3/1/2026, 10:00:00 PM') is not a readable date such as "
         "2026-01-31T10:00:00"),
        ("TimeGenerated [UTC],PromptTokens", "01/03/2026 10:00,500",
         "--columns input=PromptTokens; TimeGenerated [UTC] ('01/03/2026 10:00') is not a readable date such as "
         "2026-01-31T10:00:00"),
        ("TimeGenerated [UTC],PromptTokens", "2026-03-01 10:00:00.250,500",
         "--columns time=TimeGenerated [UTC],input=PromptTokens"),
        ("time,ts,isl", "noon,5,500", "--columns time=ts,input=isl"),
        ("time,isl", ",500", "--columns input=isl"),
    ],
)  # fmt: skip
def test_a_date_that_may_mean_two_days_is_named(tmp_path, header, row, said):
    file = tmp_path / "log.csv"
    file.write_text(f"{header}\n{row}\n")
    with pytest.raises(ConfigError) as refused:
        open_trace(file)
    assert str(refused.value).endswith(said)


def test_a_column_with_a_unit_in_brackets_can_be_named(tmp_path):
    file = tmp_path / "log.csv"
    file.write_text("TimeGenerated [UTC],Prompt\n2026-03-01 10:00:00,a\n2026-03-01 10:00:05,b\n")
    columns = {"time": "TimeGenerated [UTC]", "prompt": "Prompt"}
    assert lengths(open_trace(file, TraceOptions(columns=columns))) == [(0, 1, 0), (5, 1, 0)]


# What is no table


def test_what_stands_before_json_that_says_its_time_is_passed_over(tmp_path):
    file = tmp_path / "pod.log"
    records = ({"timestamp": 5 + second, "messages": [user("a {b")]} for second in range(2))
    kept = "".join(f"2026-03-01T10:00:00.1Z stdout F {json.dumps(record)}\n" for record in records)
    file.write_text(f'{kept}{{"timestamp": 9, "messages": [{json.dumps(user("c d {e"))}]}}\n')
    assert [one[0] for one in lengths(open_trace(file))] == [0, 1, 4]


@pytest.mark.parametrize("before", ["[INFO] ", "[INFO] 2026-03-01 10:00:00,123 app: ", "[2026-03-01 10:00:00] "])
def test_so_is_what_begins_with_a_bracket(tmp_path, before):
    file = tmp_path / "app.log"
    records = ({"timestamp": 5 + second, "messages": [user("a {b")]} for second in range(2))
    file.write_text("".join(f"{before}{json.dumps(record)}\n" for record in records))
    assert [one[0] for one in lengths(open_trace(file))] == [0, 1]
    file.write_text(json.dumps([{"timestamp": 5, "messages": [user("a [INFO] b")]}]))
    assert [one[0] for one in lengths(open_trace(file))] == [0], "a list is no log"


def test_what_stands_before_json_has_to_go(tmp_path):
    file = tmp_path / "pod.log"
    record = json.dumps({"messages": [user("a"), user("a"), user("b")]})
    file.write_text(f"2026-03-01T10:00:00.1Z stdout F {record}\n" * 2)
    with pytest.raises(ConfigError, match=r"two columns are called .* \(remove what is before the JSON of a line"):
        open_trace(file)
    file.write_text("a,b,a\n1,2,3\n")
    with pytest.raises(ConfigError, match=r"two columns are called 'a'$"):
        open_trace(file)


def test_answers_of_anthropic_s_batches_are_refused_as_what_they_are(tmp_path):
    file = tmp_path / "results.jsonl"
    file.write_text(json.dumps({"custom_id": "a", "result": {"type": "succeeded", "message": {"content": []}}}))
    with pytest.raises(ConfigError, match="this is the answers of a batch; the requests are in the file from"):
        open_trace(file)
