"""The same requests in other plausible layouts: other spellings of names, and records further in or flat."""

import json
import re

import pytest
from kv_sim_foreign_traces import lengths, user

from kv_api import ConfigError
from kv_sim.replay.readers.opening import open_trace
from kv_sim.replay.readers.unknown.likely_columns import likely_columns
from kv_sim.replay.readers.unknown.own_columns import parse_columns

RULES = "Say no more than you have to. " * 14
ASKED = "what did you say to them then? " * 4
CHAT = [user(ASKED), {"role": "assistant", "content": "Nothing."}]
TIME = "2026-01-31T10:00:00Z"


def tokens(requests):
    return [one.input_tokens for one in requests]


def refusal(read, *records):
    with pytest.raises(ConfigError) as refused:
        read(*records)
    return str(refused.value)


# -- what is told before messages ----------------------------------------------------------------


@pytest.mark.parametrize("field", ["system", "system_prompt", "systemPrompt", "system_message", "systemMessage"])
def test_a_system_prompt_counts_under_any_name(read, field):
    for record in ({"messages": [user(ASKED)], "max_tokens": 5}, {"prompt": ASKED}, {"conversations": CHAT}):
        (without,), (with_it,) = (tokens(read(one)[0]) for one in (record, {**record, field: RULES}))
        assert with_it == pytest.approx(without + len(RULES) / 4, abs=6)


def test_one_that_is_also_the_first_message_counts_once(read):
    told = {"role": "system", "content": RULES}
    chat = {"messages": [told, user(ASKED)], "max_tokens": 5}
    assert tokens(read(chat)[0]) == tokens(read({**chat, "systemPrompt": RULES})[0])


@pytest.mark.parametrize("column", ["asked", "deeper.in.asked"])
@pytest.mark.parametrize("part", ["prompt", "conversation"])
def test_it_counts_beside_a_column_of_messages(read, column, part):
    def record(more):
        inner = {"asked": CHAT[:1] if part == "prompt" else CHAT, **more}
        return inner if column == "asked" else {"deeper": {"in": inner}}

    (without,) = tokens(read(record({}), columns={part: column})[0])
    (with_it,) = tokens(read(record({"system_prompt": RULES, "tools": {"no": "list"}}), columns={part: column})[0])
    assert with_it == pytest.approx(without + len(RULES) / 4, abs=6)
    flat = {f"at.{name}": one for name, one in {"asked": CHAT, "system_prompt": RULES}.items()}
    assert tokens(read(flat, columns={"conversation": "at.asked"})[0]) > [len(RULES) / 4]


# -- names ---------------------------------------------------------------------------------------


def test_names_may_be_in_camel_case(read):
    record = {
        "startedAt": TIME,
        "sessionId": "s",
        "requestBody": {"messages": [user(ASKED)]},
        "responseBody": {"usage": {"promptTokens": 300, "completionTokens": 7}},
        "statusCode": 503,
    }
    requests, notes = read(record, {**record, "startedAt": "2026-01-31T10:00:05Z"})
    assert [(one.arrival_seconds, one.output_tokens) for one in requests] == [(0, 7), (5, 7)]
    assert notes[0] == "format: openai" and "2 requests failed" in " ".join(notes)
    assert any(note.startswith("usage says 600 prompt tokens") for note in notes)


@pytest.mark.parametrize(("human", "model"), [("USER", "ASSISTANT"), ("Human", "AI"), ("User", "Chatbot")])
def test_roles_may_be_in_capitals(read, human, model):
    spoken = [{"role": human, "content": ASKED}, {"role": model, "content": "Nothing."}]
    requests, notes = read({"messages": spoken})
    assert notes[0] == "format: conversations" and lengths(requests) == lengths(read({"messages": CHAT})[0])


def test_words_under_a_name_that_no_message_has_are_not_passed_over(read):
    where = "messages[0].content: expected what was said, got no such field but role, words"
    assert where in refusal(read, {"messages": [{"role": "user", "words": ASKED}]})
    read({"messages": [user(ASKED), {"role": "assistant", "name": "x"}, user(ASKED)]})


def test_messages_with_an_answer_beside_are_a_request_under_any_name(read):
    asked = [*CHAT, user(ASKED)]
    for answer in ({"usage": {"completion_tokens": 5}}, {"response": "Nothing."}):
        assert "--columns prompt=conversation" in refusal(
            read, {"conversation": asked, **answer, "output_tokens": 5}
        )
    assert read({"conversation": asked})[1][0] == "format: conversations"


def test_input_that_ends_with_an_answer_may_be_a_conversation(read):
    within = "prompts have 1 answer within: if each is a whole conversation, use --format conversations"
    assert within in read({"input": CHAT})[1]


def test_turns_in_which_a_model_speaks_are_none_of_aiperf(read):
    turns = [{"role": "user", "text": ASKED}, {"role": "assistant", "text": "Nothing."}]
    assert "--columns conversation=turns" in refusal(read, {"turns": turns})
    assert read({"turns": turns[:1]})[1][0] == "format: aiperf-turns"


# -- what is proposed ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("record", "line"),
    [
        (
            {"Received At": TIME, "Num Input Tokens": 9, "Completion Token Count": 2},
            "time=Received At,input=Num Input Tokens,output=Completion Token Count",
        ),
        (
            {"submitted_at": 5, "usage": {"total-prompt-tokens": 9, "num-generated-tokens": 2}},
            "time=submitted_at,input=usage.total-prompt-tokens,output=usage.num-generated-tokens",
        ),
        (
            {"unixTime": 5, "isl": 9, "prefixCacheHitTokens": 4, "threadId": "t"},
            "time=unixTime,input=isl,cached=prefixCacheHitTokens,session=threadId",
        ),
        ({"start_timestamp": 5, "end_time": 6, "isl": 9}, "time=start_timestamp,input=isl"),
        ({"isl": 9, "cache_creation_tokens": 4, "max_output_tokens": 4, "prompt_tokens_limit": 1}, "input=isl"),
        ({"Prompt Text": ASKED, "prompt_tokens": 9}, "prompt=Prompt Text,input=prompt_tokens"),
        ({"llm": {"prompt_token_ids": [1, 2], "isl": 2}}, "prompt=llm.prompt_token_ids,input=llm.isl"),
        ({"Input": [user(ASKED)], "isl": 9}, "prompt=Input,input=isl"),
        ({"talk": json.dumps(CHAT), "model_id": "m"}, "conversation=talk,model=model_id"),
        ({"at": {"talk": [*CHAT, user("b")]}, "osl": 9}, "prompt=at.talk,output=osl"),
        ({"at": {"talk": [*CHAT, user("b")]}}, "conversation=at.talk"),
        ({"question": "q1", "isl": 9, "answered": CHAT[1:]}, "input=isl"),
        ({"system": RULES, "talk": [user(ASKED)]}, "prompt=talk"),
        ({"author": "user", "content": ASKED}, None),
    ],
)
def test_columns_are_told_by_words_and_by_what_they_have(record, line):
    assert likely_columns(record) == line


def test_text_beside_lengths_is_pointed_at(read):
    asked = {"usage": {"isl": 9}, "text": ASKED}
    assert "if text has whole prompts, add prompt=text, which shows what they share" in refusal(read, asked)
    assert lengths(read(asked, columns=parse_columns("input=usage.isl,prompt=text"))[0]) == [(0, 31, 0)]
    for other in ({**asked, "hash_ids": [1]}, {**asked, "text": "word"}):
        assert "whole prompts" not in refusal(read, other)


def test_a_lack_of_a_date_is_said_of_no_object(read):
    assert "is not a readable date" not in refusal(read, {"event": {"isl": 5}})


def test_openai_is_not_proposed_for_a_table(tmp_path):
    file = tmp_path / "t.csv"
    file.write_text("id,input\n1,what to embed or answer\n")
    with pytest.raises(ConfigError) as refused:
        open_trace(file)
    assert "--format openai" not in str(refused.value)


# -- what jq takes out ---------------------------------------------------------------------------

BODY = {"model": "m", "messages": [user(ASKED)], "temperature": 1}
GEMINI = {"contents": [{"role": "user", "parts": [{"text": ASKED}]}], "systemInstruction": {"parts": []}}
REPLY = {"choices": [{"message": {"content": "No."}}], "usage": {"completion_tokens": 7}}


@pytest.mark.parametrize("body", [BODY, GEMINI, json.dumps(BODY)])
def test_what_was_asked_stays_with_its_time(read, body):
    log = {"timestamp": TIME, "llm-call": body, "reply": REPLY}
    way = '.hits | .rows | .[] | .request_body = ."llm-call" | .response_body = .reply'
    assert f"(readable records are further in: jq -c '{way}' takes them out)" in refusal(
        read, {"took": 3, "hits": {"rows": [log]}}
    )
    assert "llm-call is a request to an API: rename it to request_body" in refusal(read, log)
    way = '.[] | .request_body = ."llm-call" | .response_body = .reply'
    undated = {**log, "timestamp": "yesterday"}
    assert f"further in: jq -c '{way}' takes" in refusal(read, {"r0": undated, "r1": undated})
    renamed = {"timestamp": TIME, "request_body": body, "response_body": REPLY}
    requests, notes = read(renamed)
    assert not any("no times" in note for note in notes) and requests[0].output_tokens == 7


@pytest.mark.parametrize(
    ("record", "way"),
    [
        ({"took": 3, "hits": {"rows": [{"isl": 5, "osl": 6}]}}, ".hits | .rows | .[]"),
        ({"took": 3, "hits": {"rows": [{"author": "user", "content": ASKED}]}}, None),
        ({"said": [{"sender": "assistant", "text": ASKED}]}, None),
        ({"at": {"said": [{"sender": "assistant", "text": [{"type": "text", "text": ASKED}]}]}}, None),
        ({"event": {"received_at": TIME, "messages": [user(ASKED)]}}, ".event"),
    ],
)
def test_what_is_taken_out_is_a_record(read, record, way):
    found = re.search("jq -c '(.*?)' takes", refusal(read, record))
    assert (found and found[1]) == way


def test_records_by_name_are_taken_out_before_they_are_seen_as_requests(read):
    assert "jq -c '.[]' takes them out" in refusal(read, {"r0": BODY, "r1": BODY})


def test_lengths_beside_metadata_are_no_measurements_of_aiperf(read):
    record = {"metadata": {"created_at": TIME}, "metrics": {"prompt_tokens": 5}}
    line = "time=metadata.created_at,input=metrics.prompt_tokens"
    assert f"--columns {line}" in refusal(read, record)
    assert parse_columns(line)


# -- what is said of a trace ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "record",
    [
        {"timestamp": 5, "input_length": 900, "hash_ids": [1, 2]},
        {"prompt": ASKED},
        {"messages": [user(ASKED)], "max_tokens": 5},
        {"at": 5, "asked": ASKED},
    ],
)
def test_failed_requests_are_counted_in_every_format(read, record):
    columns = {"prompt": "asked"} if "asked" in record else None
    failed = [{**record, **more} for more in ({"success": False}, {"success": "False"}, {"status": 500}, {})]
    requests, notes = read(*failed, columns=columns)
    said = "3 requests failed, according to a status or an error; each counts like any other request"
    assert len(requests) == 4 and said in notes
    assert said not in read(*[{**record, "success": True, "status": 200}] * 4, columns=columns)[1]


def test_prompts_that_share_nothing_may_be_less_than_what_was_asked(read):
    """As AnythingLLM exports its chats: a user's words without what was said before."""
    records = [{"prompt": f"{number} is what {ASKED}", "response": "No."} for number in range(10)]
    said = "no two of 10 prompts begin alike: has each all that a model was asked, "
    said += "with what the system told it and what was said before?"
    assert said in read(*records)[1]
    for others in (records[:9], [*records, records[4]], [{**one, "system": RULES} for one in records]):
        assert not any("begin alike" in note for note in read(*others)[1])
