"""Chats that DeepSeek, LibreChat and LM Studio keep or export, and sessions of Copilot CLI."""

import json

import pytest
from kv_sim_foreign_traces import lengths, shared
from kv_sim_front_ends import (
    NOBODY,
    START,
    answered,
    asked,
    block,
    event,
    fragments,
    item,
    of_continue,
    of_deepseek,
    of_librechat,
    of_lm_studio,
)
from kv_sim_kept_chats import BEGIN, NEXT, SAID

from kv_api import ConfigError
from kv_sim.replay.readers.opening import open_trace

ANSWER = "z" * 28
ROLES = {role: len(f"<|{role}|>") for role in ("user", "assistant", "tool", "system")}


def tokens(*spoken):
    """Of a prompt of messages, each a role and its characters, and of who answers."""
    return -(-sum(ROLES[role] + characters for role, characters in (*spoken, ("assistant", 0))) // 4)


QUESTION = ("user", 107)
AGAIN = tokens(QUESTION, ("assistant", 28), ("user", 42))


def refused(tmp_path, *records):
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    with pytest.raises(ConfigError) as error:
        open_trace(path)
    return str(error.value).removeprefix(f"{path}:").removesuffix(" (--on-error skip goes on)")


# -- DeepSeek ------------------------------------------------------------------------------------


WITH_FRAGMENTS = (
    ("1", "root", 0, fragments(("REQUEST", SAID))),
    ("2", "1", 1, fragments(("THINK", "t" * 40), ("RESPONSE", "w" * 8))),
    ("3", "1", 9, fragments(("SEARCH", None), ("RESPONSE", ANSWER))),
    ("4", "3", 20, fragments(("REQUEST", NEXT))),
    ("5", "4", 21, fragments(("RESPONSE", "v" * 16))),
)
WITH_FIELDS = (
    ("1", "root", 0, {"content": SAID, "reasoning_content": None}),
    ("2", "1", 1, {"content": "w" * 8, "reasoning_content": "t" * 40}),
    ("3", "1", 9, {"content": ANSWER}),
    ("4", "3", 20, {"content": NEXT}),
    ("5", "4", 21, {"content": "v" * 16}),
)


@pytest.mark.parametrize("messages", [WITH_FRAGMENTS, WITH_FIELDS])
def test_answers_of_deepseek_are_requests_and_thoughts_aren_t_sent_again(read, messages):
    requests, notes = read(of_deepseek(*messages))
    assert lengths(requests) == [(0, 32, 12), (0, 32, 7), (20, AGAIN, 4)]
    assert [shared(requests[0], one) for one in requests[1:]] == [2, 2]
    assert notes[0] == "format: deepseek"


def test_files_of_deepseek_stand_for_themselves(read):
    asked = {**fragments(("REQUEST", "a" * 30)), "files": [{"id": "f", "file_name": "a.pdf"}]}
    (one,), notes = read(of_deepseek(("1", "root", 0, asked), ("2", "1", 1, fragments(("RESPONSE", "b")))))
    assert one.input_tokens == tokens(("user", 30 + len("<file 0123456789abcdef>")))
    assert notes[2].startswith("1 request has images, sounds or files")


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (
            of_deepseek(("1", "root", 0, {"fragments": 5})),
            "mapping.1.message.fragments: expected a list of objects",
        ),
        (of_deepseek(("1", "root", 0, {"files": [5]})), "mapping.1.message.files: expected a list of objects"),
        ({**of_deepseek(), "mapping": 5}, "mapping: expected an object, got int"),
        ({**of_deepseek(), "mapping": {"a": 5}}, "mapping.a: expected an object, got int"),
    ],
)
def test_what_is_no_chat_of_deepseek_s_is_refused(tmp_path, broken, message):
    assert refused(tmp_path, broken).startswith(f"1: {message}")


# -- LibreChat -----------------------------------------------------------------------------------


MESSAGES = (
    of_librechat("a", NOBODY, 0, SAID, by_user=True, tokenCount=30),
    of_librechat("b", "a", 1, "w" * 8, tokenCount=9),
    of_librechat("c", "a", 9, ANSWER),
    of_librechat("d", "c", 20, NEXT, by_user=True),
    of_librechat(
        "e", "d", 21, "", content=[{"type": "think", "think": "t" * 8}, {"type": "text", "text": "v" * 8}]
    ),
)


def below(name):
    return [{**one, "children": below(one["messageId"])} for one in MESSAGES if one["parentMessageId"] == name]


@pytest.mark.parametrize(
    "records",
    [
        [{"conversationId": "c", "branches": True, "recursive": False, "messages": MESSAGES}],
        [{"conversationId": "c", "branches": True, "recursive": True, "messages": below(NOBODY)}],
        [
            {"_id": {"$oid": str(n)}, **one, "createdAt": {"$date": one["createdAt"]}}
            for n, one in enumerate(MESSAGES)
        ],
    ],
)
def test_answers_of_librechat_are_requests_however_messages_lie(read, records):
    requests, notes = read(*records)
    assert lengths(requests) == [(0, 32, 9), (0, 32, 7), (20, AGAIN, 4)]
    assert [shared(requests[0], one) for one in requests[1:]] == [2, 2]
    assert notes[0] == "format: librechat"


def test_messages_of_librechat_s_database_are_of_many_chats(read):
    second = [{**one, "conversationId": "d", "messageId": f"{one['messageId']}2"} for one in MESSAGES[:2]]
    second[1]["parentMessageId"] = second[0]["messageId"]
    requests, _ = read(*(one for pair in zip(MESSAGES[:2], second, strict=True) for one in pair))
    assert lengths(requests) == [(0, 32, 9), (0, 32, 9)]


def test_messages_of_librechat_that_name_none_that_is_there_lie_in_a_row(read):
    messages = [{**one, "parentMessageId": None} for one in (MESSAGES[0], *MESSAGES[2:])]
    requests, _ = read({"conversationId": "c", "messages": messages, "options": {"promptPrefix": "s" * 50}})
    own = ("system", 50)
    assert lengths(requests) == [
        (0, tokens(own, QUESTION), 7),
        (20, tokens(own, QUESTION, ("assistant", 28), ("user", 42)), 4),
    ]


def test_a_model_of_librechat_is_asked_anew_with_what_a_tool_gave_back(read):
    called = {"name": "look", "args": '{"a": 1}'}
    content = [
        {"type": "text", "text": {"value": "w" * 8}},
        {"type": "tool_call", "tool_call": {"id": "t", **called, "output": "o" * 30}},
        {"type": "text", "text": ANSWER},
    ]
    files = [{"type": "image/png", "filepath": "/a"}]
    requests, notes = read(
        {
            "messages": [
                of_librechat("a", NOBODY, 0, SAID, by_user=True, files=files),
                of_librechat("b", "a", 1, "", content=content, tokenCount=99),
            ]
        }
    )
    call = len(json.dumps(called))
    asked = ("user", 107 + len("<image 0123456789abcdef>"))
    assert lengths(requests) == [
        (0, tokens(asked), -(-(8 + call) // 4)),
        (0, tokens(asked, ("assistant", 8 + call), ("tool", 30)), 7),
    ]
    assert any(note.startswith("2 requests have images") for note in notes)


@pytest.mark.parametrize(
    ("records", "message"),
    [
        ([{**MESSAGES[0]}, {"messages": 5}], "2: messages: expected messages, got int"),
        ([{"messages": [MESSAGES[0], 5]}], "1: messages[1]: expected an object, got int"),
        ([{"messages": [{**MESSAGES[0], "files": 5}]}], "1: files: expected a list of objects, got int"),
    ],
)
def test_what_is_no_chat_of_librechat_s_is_refused(tmp_path, records, message):
    assert refused(tmp_path, *records) == message


# -- LM Studio -----------------------------------------------------------------------------------


def test_answers_of_lm_studio_are_requests_of_each_version(read):
    thought = block("t" * 40, 1, style={"type": "thinking"})
    told = {"promptTokensCount": 30, "predictedTokensCount": 11}
    requests, notes = read(
        of_lm_studio(
            (0, asked(SAID)),
            (1, answered(thought, block("w" * 8, 3, stats=told)), answered(block(ANSWER, 9))),
            (0, asked(NEXT)),
            (0, answered({"type": "debugInfoBlock", "debugInfo": "x"}, block("v" * 16, 20))),
        )
    )
    assert lengths(requests) == [(0, 32, 11), (8, 32, 7), (19, AGAIN, 4)]
    assert [shared(requests[0], one) for one in requests[1:]] == [2, 2]
    assert notes[0] == "format: lm-studio"


def test_a_model_of_lm_studio_is_asked_anew_with_what_a_tool_gave_back(read):
    call = {"type": "toolCallRequest", "callId": 1, "name": "look", "parameters": {"a": 1}}
    back = {"type": "toolCallResult", "content": "o" * 30}
    steps = (block([call], 1), {"type": "toolStatus"}, block([back], 2), block(ANSWER, 5))
    requests, _ = read(of_lm_studio((0, asked(SAID)), (0, answered(*steps)), systemPrompt="s" * 50))
    said = len(json.dumps({"name": "look", "parameters": {"a": 1}}))
    assert lengths(requests) == [
        (0, tokens(("system", 50), QUESTION), -(-said // 4)),
        (4, tokens(("system", 50), QUESTION, ("assistant", said), ("tool", 30)), 7),
    ]


@pytest.mark.parametrize("begin", [1000 * BEGIN, "2026-01-31T10:00:00Z"])
def test_a_minute_lies_between_turns_of_lm_studio_whose_blocks_have_no_time(read, begin):
    turns = ((0, asked(SAID)), (0, answered(block(ANSWER))), (0, asked(NEXT)), (0, answered(block("v" * 16))))
    requests, _ = read(of_lm_studio(*turns, createdAt=begin))
    assert lengths(requests) == [(0, 32, 7), (60, AGAIN, 4)]


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([(1, asked(SAID))], "messages[0].currentlySelected: expected one of 1 versions, got 1"),
        ([(0, asked(SAID)), (0, 5)], "messages[1].versions[0]: expected an object, got int"),
        (
            [(0, {"role": "user"})],
            "messages[0].versions[0].content: expected text or a list of parts, got NoneType",
        ),
        (
            [(0, asked(SAID)), (0, {"role": "assistant", "steps": 5})],
            "messages[1].versions[0].steps: expected a list of objects, got int",
        ),
    ],
)
def test_what_is_no_conversation_of_lm_studio_s_is_refused(tmp_path, messages, message):
    assert refused(tmp_path, of_lm_studio(*messages)) == f"1: {message}"


# -- Copilot CLI ---------------------------------------------------------------------------------


CALL = {"toolCallId": "t", "name": "task", "arguments": {"prompt": "p" * 60}}


def test_answers_of_copilot_are_requests_with_all_that_was_said_before(read):
    requests, notes = read(
        START,
        event("user.message", 1, {"content": "short", "transformedContent": SAID}),
        event("assistant.turn_start", 2, {"turnId": "0"}),
        event("assistant.message", 3, {"content": "w" * 8, "toolRequests": [CALL], "outputTokens": 20}),
        event("tool.execution_start", 4, {"toolCallId": "t", "toolName": "task"}),
        event("tool.execution_complete", 5, {"toolCallId": "t", "success": True, "result": {"content": "o" * 30}}),
        event("assistant.turn_end", 5, {"turnId": "0"}),
        event("assistant.turn_start", 6, {"turnId": "1"}),
        event("assistant.message", 7, {"content": "v" * 8, "reasoningText": "r" * 8}),
        event("assistant.message", 8, {"content": "u" * 4}),
    )
    said = 8 + len(json.dumps(["task", {"prompt": "p" * 60}]))
    assert lengths(requests) == [
        (0, 32, 20),
        (4, tokens(QUESTION, ("assistant", said), ("tool", 30)), 5),
    ]
    assert shared(*requests) == 2
    assert notes[0] == "format: copilot-cli"
    assert not any("models" in note for note in notes)


def test_a_subagent_of_copilot_has_the_prompt_of_the_call_that_began_it(read):
    within = {"parentToolCallId": "t"}
    requests, _ = read(
        START,
        event("user.message", 1, {"content": SAID}),
        event("assistant.message", 3, {"content": "", "toolRequests": [CALL], "outputTokens": 20}),
        event("assistant.message", 4, {"content": "i" * 8, **within}),
        event("tool.execution_complete", 5, {"toolCallId": "x", "result": {"content": "o" * 30}, **within}),
        event("assistant.message", 6, {"content": "j" * 8, **within}),
        event("assistant.message", 7, {"content": "k" * 8}, agentId="of nobody"),
    )
    inner = (("user", 60), ("assistant", 8), ("tool", 30))
    assert lengths(requests) == [(0, 32, 20), (2, tokens(("user", 60)), 2), (4, tokens(*inner), 2)]


def test_a_summary_takes_the_place_of_what_copilot_compacted(read):
    requests, _ = read(
        START,
        event("user.message", 1, {"content": SAID}),
        event("assistant.message", 3, {"content": ANSWER}),
        event("session.compaction_complete", 4, {"success": True, "summaryContent": "s" * 50}),
        event("session.compaction_complete", 4, {"success": False}),
        event("user.message", 5, {"content": NEXT}),
        event("assistant.message", 6, {"content": "v" * 16}),
    )
    assert lengths(requests) == [(0, 32, 7), (4, tokens(("user", 50), ("user", 42)), 4)]


def test_what_a_tool_of_copilot_broke_with_is_sent_too(read):
    broken = {"toolCallId": "t", "success": False, "error": {"message": "e" * 30}}
    requests, _ = read(
        START,
        event("user.message", 1, {"content": SAID}),
        event("assistant.message", 3, {"content": "w" * 8}),
        event("tool.execution_complete", 5, broken),
        event("assistant.message", 6, {"content": "v" * 16, "model": "m"}),
    )
    assert lengths(requests) == [(0, 32, 2), (4, tokens(QUESTION, ("assistant", 8), ("tool", 30)), 4)]


def test_the_model_that_copilot_changed_to_answers_from_then_on(read):
    _, notes = read(
        START,
        event("user.message", 1, {"content": SAID}),
        event("assistant.message", 3, {"content": "w" * 8}),
        event("session.model_change", 4, {"previousModel": "m", "newModel": "n"}),
        event("user.message", 5, {"content": NEXT}),
        event("assistant.message", 6, {"content": "v" * 16}),
    )
    assert "requests of 2 models, none of which can use another's blocks: m, n" in notes


def test_an_event_of_copilot_s_without_data_is_refused(tmp_path):
    message = "2: data: expected an object, got NoneType"
    assert refused(tmp_path, START, {**START, "data": None}) == message


# -- Continue ------------------------------------------------------------------------------------


def test_sessions_of_continue_have_what_was_put_in_before_what_is_said(read):
    calls = [{"id": "t", "function": {"name": "look", "arguments": "{}"}}]
    requests, notes = read(
        of_continue(
            item("user", "x" * 57, contextItems=[{"name": "a.py", "content": "x" * 50}]),
            item("thinking", "t" * 400),
            item("assistant", "", toolCalls=calls),
            item("tool", "o" * 30),
            item("assistant", ANSWER),
            item("user", [{"type": "text", "text": NEXT}]),
            item("assistant", "v" * 16),
        ),
        {"sessionId": "s", "title": "t", "workspaceDirectory": "/w", "dateCreated": "1790000000000"},
    )
    said = len(json.dumps(calls))
    went = (QUESTION, ("assistant", said), ("tool", 30))
    assert lengths(requests) == [
        (0, 32, -(-said // 4)),
        (60, tokens(*went), 7),
        (120, tokens(*went, ("assistant", 28), ("user", 42)), 4),
    ]
    assert shared(requests[0], requests[1]) == 2
    assert notes[0] == "format: continue"


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({**of_continue(), "history": [{}]}, "1: history[0].message: expected an object, got NoneType"),
        (of_continue(item("user", "a", contextItems=5)), "1: contextItems: expected a list of objects, got int"),
        (of_continue(item(None, "a")), "1: history[0]: expected a role (or from) that is text, got none"),
    ],
)
def test_what_is_no_session_of_continue_s_is_refused(tmp_path, record, message):
    assert refused(tmp_path, record) == message
