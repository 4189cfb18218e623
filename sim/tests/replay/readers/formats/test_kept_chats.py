"""Chats that programs keep: what a model was asked, by what is there of it."""

import json

import pytest
from kv_sim_foreign_traces import lengths, shared
from kv_sim_kept_chats import (
    ABOUT,
    HEADER,
    NEXT,
    SAID,
    date,
    entry,
    mapping,
    node,
    of_cline,
    of_gemini,
    of_goose,
    of_opencode,
    part,
    sent,
)

from kv_api import ConfigError
from kv_sim.replay.readers.opening import open_trace

ANSWER = "z" * 28
ROLES = {role: len(f"<|{role}|>") for role in ("user", "assistant", "tool")}


def tokens(*spoken):
    """Of a prompt of messages, each a role and its characters, and of who answers."""
    return -(-sum(ROLES[role] + characters for role, characters in (*spoken, ("assistant", 0))) // 4)


QUESTION = ("user", 107)


# -- ChatGPT -------------------------------------------------------------------------------------


def test_answers_of_chatgpt_that_were_made_anew_or_asked_otherwise_are_requests(read):
    requests, notes = read(
        mapping(
            node("s", "root", "system", "", None),
            node("a", "s", "user", SAID, 1),
            node("b", "a", "assistant", ANSWER, 2),
            node("c", "a", "assistant", "w" * 12, 9, model_slug="other"),
            node("d", "c", "user", NEXT, 20),
            node("e", "d", "assistant", "w", 21, model_slug="other"),
            node("f", "s", "user", "v" * 11, 30),
            node("g", "f", "assistant", "u" * 4, None),
            default_model_slug="m",
        )
    )
    assert lengths(requests) == [
        *((0, 32, 7), (0, 32, 3), (19, tokens(QUESTION, ("assistant", 12), ("user", 42)), 1)),
        (29, tokens(("user", 11)), 1),
    ]
    assert [shared(requests[1], one) for one in requests[2:]] == [2, 0]
    assert notes[0] == "format: chatgpt"
    assert "requests of 2 models, none of which can use another's blocks: m, other" in notes


def test_what_chatgpt_did_in_a_row_is_one_answer_and_its_thoughts_aren_t_sent_again(read):
    thought = {"content_type": "thoughts", "thoughts": [{"summary": "s", "content": "t" * 40}]}
    code = {"content_type": "code", "text": "c" * 20}
    requests, _ = read(
        mapping(
            node("a", "root", "user", SAID, 1),
            node("b", "a", "assistant", thought, 2),
            node("c", "b", "assistant", code, 3),
            node("d", "c", "tool", {"content_type": "execution_output", "text": "o" * 30}, 5),
            node("e", "d", "assistant", {"content_type": "reasoning_recap", "content": "r" * 400}, 6),
            node("f", "e", "assistant", ANSWER, 7),
        )
    )
    after = tokens(QUESTION, ("assistant", 20), ("tool", 30))
    assert lengths(requests) == [(0, 32, 15), (4, after, 7)]


def test_images_of_chatgpt_stand_for_themselves(read):
    image = {"content_type": "image_asset_pointer", "asset_pointer": "file-service://f"}
    content = {"content_type": "multimodal_text", "parts": [image, "p" * 30]}
    (one,), notes = read(mapping(node("a", "root", "user", content, 1), node("b", "a", "assistant", "z", 2)))
    assert one.input_tokens == tokens(("user", 30 + len("<image 0123456789abcdef>")))
    assert notes[2].startswith("1 request has images, sounds or files")


# -- Claude.ai -----------------------------------------------------------------------------------


def chat(*messages):
    return {"uuid": "c", "name": "n", "chat_messages": [*messages]}


def test_a_model_of_claude_ai_is_asked_anew_with_what_a_tool_gave_back(read):
    called = {"type": "tool_use", "id": "t", "name": "look", "input": {"a": 1}}
    back = {"type": "tool_result", "name": "look", "content": [{"type": "text", "text": "o" * 30}]}
    requests, _ = read(
        chat(
            sent("a", "human", SAID, 1),
            sent(
                "b",
                "assistant",
                [
                    {"type": "thinking", "thinking": "t" * 41},
                    called,
                    {**back, "stop_timestamp": date(3)},
                    {"type": "text", "text": ANSWER},
                ],
                2,
            ),
            sent("c", "human", NEXT, 9),
            sent("d", "assistant", "w", 10),
        )
    )
    use = len(json.dumps({name: called[name] for name in sorted(called) if name != "id"}))
    gave = len(json.dumps({name: back[name] for name in sorted(back)}))
    turn = (("assistant", use), ("tool", gave), ("assistant", 28))
    assert lengths(requests) == [
        (0, 32, -(-(41 + use) // 4)),
        (2, tokens(QUESTION, ("assistant", 41 + use), ("tool", gave)), 7),
        (8, tokens(QUESTION, *turn, ("user", 42)), 1),
    ]


def test_messages_of_claude_ai_stand_below_others_where_they_say_so(read):
    attached = [{"file_name": "f", "extracted_content": "e" * 50}]
    requests, notes = read(
        chat(
            sent("a", "human", SAID, 1, parent_message_uuid="0000"),
            sent("b", "assistant", ANSWER, 2, parent_message_uuid="a"),
            sent("c", "human", "v" * 11, 5, parent_message_uuid="0000", attachments=attached),
            sent("d", "assistant", "w", 6, parent_message_uuid="c"),
        )
    )
    assert lengths(requests) == [(0, 32, 7), (4, tokens(("user", 61)), 1)]
    assert notes[0] == "format: claude-ai"


@pytest.mark.parametrize("strange", [[], {}, 7])
def test_messages_of_claude_ai_that_name_nothing_above_them_are_in_a_row(read, strange):
    above = {"parent_message_uuid": strange}
    requests, _ = read(chat(sent("a", "human", SAID, 1, **above), sent("b", "assistant", ANSWER, 2, **above)))
    assert lengths(requests) == [(0, 32, 7)]


def test_texts_of_claude_ai_are_there_without_parts_too(read):
    asked = {"uuid": "a", "sender": "human", "text": SAID, "created_at": date(1)}
    requests, _ = read(chat(asked, {**asked, "uuid": "b", "sender": "assistant", "text": ANSWER}))
    assert lengths(requests) == [(0, 32, 7)]


# -- Gemini CLI ----------------------------------------------------------------------------------

SESSION = {"sessionId": "s", "projectHash": "h", "startTime": date(0)}


def called(second, result="o" * 30):
    given = [{"functionResponse": {"id": "t", "response": result}}]
    return {"toolCalls": [{"id": "t", "name": "ls", "args": {}, "result": given, "timestamp": date(second)}]}


CALL = len('{"args": {}, "name": "ls"}')
BACK = len('{"functionResponse": {"id": "t", "response": "' + "o" * 30 + '"}}')


def test_a_message_of_gemini_cli_is_the_last_one_that_is_called_so(read):
    first = of_gemini("b", "gemini", "", 2, model="m")
    counts = {"input": 90, "output": 3, "thoughts": 4, "tool": 5, "cached": 80}
    requests, notes = read(
        SESSION,
        of_gemini("a", "user", SAID, 1),
        of_gemini("i", "info", "i" * 400, 1.5),
        first,
        {**first, "tokens": counts},
        {**first, "tokens": counts, **called(4)},
        {"$set": {"lastUpdated": date(4)}},
        of_gemini("c", "gemini", ANSWER, 5, model="m"),
        {**first, "tokens": counts, **called(4, "masked")},
        of_gemini("d", "user", NEXT, 9),
        of_gemini("e", "gemini", "w", 10, model="m"),
    )
    turn = (QUESTION, ("assistant", CALL), ("tool", BACK))
    after = tokens(QUESTION, ("assistant", CALL), ("tool", BACK - 24), ("assistant", 28), ("user", 42))
    assert lengths(requests) == [(0, 32, 7), (3, tokens(*turn), 7), (8, after, 1)]
    assert notes[0] == "format: gemini-cli"
    assert any(note.startswith("usage says 95 prompt tokens where 32 are counted here") for note in notes)


def test_what_gemini_cli_wound_back_was_asked_and_what_took_its_place_wasn_t(read):
    requests, _ = read(
        SESSION,
        of_gemini("a", "user", SAID, 1),
        of_gemini("b", "gemini", ANSWER, 2),
        {"$rewindTo": "a"},
        of_gemini("c", "user", "v" * 11, 5),
        of_gemini("d", "gemini", "w", 6),
        {"$set": {"messages": [of_gemini("x", "user", "u" * 27, 7), of_gemini("y", "gemini", "k", 7)]}},
        of_gemini("e", "user", "v", 9),
        of_gemini("f", "gemini", "w", 10),
    )
    last = tokens(("user", 27), ("assistant", 1), ("user", 1))
    assert lengths(requests) == [(0, 32, 7), (4, tokens(("user", 11)), 1), (8, last, 1)]


def test_a_copy_of_gemini_cli_s_that_says_less_takes_nothing_away(read):
    """A session that is gone on with begins with all of it, without counts, models and what tools gave back."""
    counts = {"tokens": {"input": 90, "output": 3, "cached": 80}}
    asked, answer = of_gemini("a", "user", SAID, 1), of_gemini("c", "gemini", ANSWER, 5, model="m", **counts)
    call = of_gemini("b", "gemini", "", 2, model="m", **counts, **called(4))
    parts = [{"functionCall": {"id": "t", "name": "ls", "args": {}}}]
    copies = [
        {**asked, "timestamp": date(8)},
        of_gemini("b", "gemini", parts, 8),
        of_gemini("b_response", "user", call["toolCalls"][0]["result"], 8),
        of_gemini("c", "gemini", [{"text": ANSWER}], 8),
    ]
    more = [of_gemini("d", "user", NEXT, 9), of_gemini("e", "gemini", "w", 10, model="m")]
    whole, _ = read(SESSION, asked, call, answer, *more)
    requests, notes = read(SESSION, asked, call, answer, SESSION, {"$set": {"messages": copies}}, *more)
    assert [(*one, two.blocks) for one, two in zip(lengths(requests), requests, strict=True)] == [
        (*one, two.blocks) for one, two in zip(lengths(whole), whole, strict=True)
    ]
    assert not any("models" in note for note in notes)


def test_a_session_of_gemini_cli_that_was_gone_on_with_counts_once(tmp_path):
    messages = [of_gemini("a", "user", SAID, 1), of_gemini("b", "gemini", ANSWER, 2)]
    folder = tmp_path / "tmp" / "project" / "chats"
    folder.mkdir(parents=True)
    (folder / "session-1.json").write_text(json.dumps({**SESSION, "messages": messages}, indent=2))
    more = [of_gemini("c", "user", NEXT, 9), of_gemini("d", "gemini", "w", 10)]
    (folder / "session-1.jsonl").write_text("".join(json.dumps(one) + "\n" for one in (SESSION, *messages, *more)))
    logged = [{"sessionId": "s", "messageId": 0, "type": "user", "message": SAID, "timestamp": date(1)}]
    (folder.parent / "logs.json").write_text(json.dumps(logged))
    trace = open_trace(tmp_path / "tmp")
    assert lengths(trace) == [(0, 32, 7), (8, 55, 1)]
    assert "1 request is repeated, in another file of its session: each counts once" in trace.notes


# -- opencode ------------------------------------------------------------------------------------


def test_each_step_of_opencode_is_a_request(read):
    spent = {"input": 10, "output": 5, "reasoning": 2, "cache": {"read": 20, "write": 3}}
    state = {
        "status": "completed",
        "input": {},
        "output": "o" * 30,
        "time": {"start": 0, "end": 1_790_000_004_000},
    }
    stepped = of_opencode(
        "b",
        "assistant",
        2,
        part("step-start"),
        part("reasoning", text="t" * 40),
        part("tool", tool="ls", state=state),
        part("step-finish", tokens=spent),
        part("step-start"),
        part("text", text=ANSWER),
        part("step-finish", tokens={**spent, "input": 30, "output": 1}),
        modelID="m",
        error={"name": "x"},
    )
    asked = of_opencode("a", "user", 1, part("text", text=SAID), part("file", mime="text/plain", url="u" * 99))
    requests, notes = read({"info": {"id": "s"}, "messages": [asked, stepped]})
    use = len('["ls", {}]')
    assert lengths(requests) == [(0, 32, 7), (3, tokens(QUESTION, ("assistant", 40 + use), ("tool", 30)), 3)]
    assert "2 requests failed, according to a status or an error; each counts like any other request" in notes
    assert not any(note.startswith("usage says") for note in notes), "33 and 53"


@pytest.mark.parametrize(("steps", "answer"), [([5], 5), ([None], 9), ([None, 5], 5)])
def test_what_a_message_of_opencode_counts_is_of_its_only_step_if_that_says_nothing(read, steps, answer):
    counts = [{"tokens": {"output": step}} if step else {} for step in steps]
    parts = [one for count in counts for one in (part("text", text=ANSWER), part("step-finish", **count))]
    asked = of_opencode("a", "user", 1, part("text", text=SAID))
    answered = of_opencode("b", "assistant", 2, *parts, tokens={"output": 9})
    requests, _ = read({"info": {"id": "s"}, "messages": [asked, answered]})
    assert lengths(requests)[-1][2] == answer


def test_what_opencode_compacted_is_sent_no_more(read):
    messages = [
        of_opencode("a", "user", 1, part("text", text=SAID)),
        of_opencode("b", "assistant", 2, part("text", text=ANSWER)),
        of_opencode("c", "user", 4, part("text", text="v" * 11)),
        of_opencode("d", "assistant", 5, part("text", text="s" * 19), summary=True, parentID="c"),
        of_opencode("e", "user", 9, part("text", text=NEXT)),
        of_opencode("f", "assistant", 10, part("text", text="w")),
    ]
    requests, _ = read({"info": {"id": "s"}, "messages": messages})
    summed = tokens(QUESTION, ("assistant", 28), ("user", 11))
    after = tokens(("user", 11), ("assistant", 19), ("user", 42))
    assert lengths(requests) == [(0, 32, 7), (3, summed, 5), (8, after, 1)]


# -- pi ------------------------------------------------------------------------------------------


def by_user(text):
    return {"message": {"role": "user", "content": text}}


def by_model(*parts, **more):
    return {"message": {"role": "assistant", "content": [*parts], **more}}


def text(said):
    return {"type": "text", "text": said}


def test_entries_of_pi_stand_below_others(read):
    usage = {"input": 3, "cacheRead": 20, "cacheWrite": 9, "output": 11}
    call = {"type": "toolCall", "id": "t", "name": "ls", "arguments": {}}
    requests, notes = read(
        HEADER,
        entry("a", None, 1, **by_user(SAID)),
        entry("b", "a", 2, **by_model({"type": "thinking", "thinking": "t" * 40}, call, usage=usage, model="m")),
        entry("c", "b", 4, message={"role": "toolResult", "toolCallId": "t", "content": [text("o" * 30)]}),
        entry("d", "c", 5, **by_model(text(ANSWER), usage={**usage, "cacheRead": 40}, model="m")),
        entry("m", "a", 8, "model_change", modelId="n"),
        entry("e", "m", 9, **by_model(text("w"), model="m", stopReason="aborted")),
    )
    use = len('["ls", {}]')
    stepped = tokens(QUESTION, ("assistant", 40 + use), ("tool", 30))
    assert lengths(requests) == [(0, 32, 11), (3, stepped, 11), (7, 32, 1)]
    assert shared(requests[0], requests[2]) == 2
    assert notes[0] == "format: pi"
    assert not any(note.startswith("usage says") for note in notes), "32 and 52"
    assert "1 request failed, according to a status or an error; each counts like any other request" in notes


def test_what_pi_compacted_is_sent_no_more(read):
    requests, _ = read(
        HEADER,
        entry("a", None, 1, **by_user(SAID)),
        entry("b", "a", 2, **by_model(text(ANSWER))),
        entry("c", "b", 3, **by_user("v" * 11)),
        entry("d", "c", 4, **by_model(text("s" * 4))),
        entry("e", "d", 5, "compaction", summary="u" * 50, firstKeptEntryId="c"),
        entry("f", "e", 9, **by_user(NEXT)),
        entry("g", "f", 10, **by_model(text("w"))),
    )
    after = tokens(("user", 50), ("user", 11), ("assistant", 4), ("user", 42))
    assert lengths(requests)[-1] == (8, after, 1)


def test_the_first_sessions_of_pi_are_in_a_row_and_a_fork_is_a_copy(tmp_path):
    header = {name: value for name, value in HEADER.items() if name != "version"}
    asked = [entry("a", None, 1, **by_user(SAID)), entry("b", "a", 2, **by_model(text(ANSWER)))]
    more = [entry("c", "b", 9, **by_user(NEXT)), entry("d", "c", 10, **by_model(text("w")))]
    lines = [{name: one[name] for name in one if name not in ("id", "parentId")} for one in (*asked, *more)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(one) + "\n" for one in (header, *lines)))
    assert lengths(open_trace(tmp_path)) == [(0, 32, 7), (8, 55, 1)]
    for name, found in (("a", asked), ("b", (*asked, *more))):
        file = tmp_path / f"{name}.jsonl"
        file.write_text("".join(json.dumps(one) + "\n" for one in ({**HEADER, "id": name}, *found)))
    trace = open_trace(tmp_path)
    assert lengths(trace) == [(0, 32, 7), (8, 55, 1)]
    assert "1 request is repeated, in another file of its session: each counts once" in trace.notes


def test_entries_of_pi_without_ids_are_no_copies_of_each_other(tmp_path):
    for name in "ab":
        lines = [entry("", None, 1, **by_user(SAID + name)), entry("", None, 2, **by_model(text(ANSWER)))]
        lines = [{key: one[key] for key in one if key not in ("id", "parentId")} for one in lines]
        whole = "".join(json.dumps(one) + "\n" for one in ({**HEADER, "id": name}, *lines))
        (tmp_path / f"{name}.jsonl").write_text(whole)
    assert len(open_trace(tmp_path)) == 2


# -- goose ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("exported", [True, False])
def test_sessions_of_goose_have_what_tools_gave_back_and_nothing_for_the_user_only(read, exported):
    use = {"type": "toolRequest", "id": "t", "toolCall": {"status": "success", "value": {"name": "ls"}}}
    back = {"type": "toolResponse", "id": "t", "toolResult": {"status": "success", "value": []}}
    messages = [
        of_goose("user", SAID, 1),
        of_goose("assistant", "z" * 4, 2),
        of_goose("assistant", [use], 3, metadata={"agentVisible": True}),
        of_goose("user", [back], 5),
        of_goose("user", "n" * 400, 6, metadata={"agentVisible": False}),
        of_goose("assistant", ANSWER, 7),
    ]
    whole = [{**ABOUT, "id": "s", "conversation": messages}] if exported else [ABOUT, *messages]
    requests, notes = read(*whole)
    called, given = (len(json.dumps(one)) for one in (use["toolCall"], back["toolResult"]))
    after = tokens(QUESTION, ("assistant", 4), ("assistant", called), ("user", given))
    assert lengths(requests) == [(0, 32, -(-(4 + called) // 4)), (5, after, 7)]
    assert notes[0] == "format: goose"


def test_thoughts_of_goose_are_sent_again_as_far_as_they_are_told(read):
    thought = {"type": "thinking", "signature": "s" * 90}
    for more, letters in (({}, 0), ({"thinking": None}, 0), ({"thinking": "t" * 40}, 40)):
        messages = [
            of_goose("user", SAID, 1),
            of_goose("assistant", [{**thought, **more}, text(ANSWER)], 2),
            of_goose("user", NEXT, 3),
            of_goose("assistant", "w", 4),
        ]
        requests, _ = read(ABOUT, *messages)
        after = tokens(QUESTION, ("assistant", letters + 28), ("user", 42))
        assert lengths(requests) == [(0, 32, -(-(letters + 28) // 4)), (2, after, 1)]


# -- Cline, and Roo Code -------------------------------------------------------------------------


def test_a_task_of_cline_has_tools_and_summaries(read):
    use = {"type": "tool_use", "id": "t", "name": "ls", "input": {}}
    back = {"type": "tool_result", "tool_use_id": "t", "content": "o" * 30}
    told = {"metrics": {"tokens": {"prompt": 33, "completion": 9}}, "modelInfo": {"modelId": "m"}}
    thought = {"type": "thinking", "thinking": "t" * 40, "signature": "s" * 400}
    requests, notes = read(
        of_cline("user", SAID, 1, condenseParent="x"),
        of_cline("assistant", [thought, use], 2, condenseParent="x", **told),
        of_cline("user", [back], 4, condenseParent="x"),
        of_cline("assistant", ANSWER, 5, condenseParent="x", **told),
        of_cline("user", "s" * 50, 8, isSummary=True, condenseId="x"),
        of_cline("user", NEXT, 9),
        of_cline("assistant", "w", 10, **told),
    )
    turn = (QUESTION, ("assistant", 40 + len('["ls", {}]')), ("user", 32))
    after = tokens(("user", 50), ("user", 42))
    assert lengths(requests) == [(0, 32, 9), (3, tokens(*turn), 9), (8, after, 9)]
    assert notes[0] == "format: cline"


def test_tasks_of_cline_are_a_folder(tmp_path):
    for name in "ab":
        (tmp_path / name).mkdir()
        messages = [of_cline("user", SAID, 1), of_cline("assistant", ANSWER, 2)]
        (tmp_path / name / "api_conversation_history.json").write_text(json.dumps(messages))
        (tmp_path / name / "ui_messages.json").write_text("[]")
    trace = open_trace(tmp_path)
    assert lengths(trace) == [(0, 32, 7), (0, 32, 7)]
    assert (
        trace.notes[-1]
        == "files of the folder that were left out for their names: 2 (a/ui_messages.json, b/ui_messages.json)"
    )


# -- what isn't there ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("record", "problem"),
    [
        (
            [mapping(node("a", "root", "user", SAID, "?"))],
            "mapping.a.message.create_time: expected a number or a date",
        ),
        (
            [mapping(node("a", "root", "user", SAID, None), node("b", "a", "assistant", "z", None))],
            "mapping.b.message: expected a time of it, or of a message above it, got none",
        ),
        ([chat(5)], "chat_messages[0]: expected an object, got int"),
        ([{"chat_messages": 5}], "chat_messages: expected messages, got int"),
        ([chat(sent("a", "human", SAID, 1, files=5))], "files: expected a list of objects, got int"),
        (
            [
                SESSION,
                {"id": "a", "type": "gemini"},
                of_gemini("b", "user", 5, 1),
                of_gemini("c", "gemini", "z", 2),
            ],
            "message b.content: expected text or a list of parts, got int",
        ),
        ([SESSION, {"messages": [{"type": "user"}]}], "messages: expected each with an id, got one without"),
        (
            [HEADER, entry("a", None, 1, **by_user(SAID)), entry("b", "a", 2, **by_model(usage={"output": -1}))],
            "message.usage.output: expected a whole number of at least 0, got -1",
        ),
        (
            [of_cline("user", SAID, 1), of_cline("assistant", {}, 2)],
            "content.content: expected text or a list of parts, got dict",
        ),
    ],
)
def test_what_a_chat_doesn_t_say_is_malformed(read, record, problem):
    with pytest.raises(ConfigError) as error:
        read(*record)
    assert f": {problem}" in str(error.value)


@pytest.mark.parametrize(
    ("name", "record", "problem"),
    [
        ("chatgpt", {"mapping": []}, "mapping: expected an object, got list"),
        ("opencode", {"info": 5, "messages": 5}, "messages: expected messages, got int"),
        (
            "opencode",
            {"info": 5, "messages": [of_opencode("b", "assistant", 2, tokens={"input": -1, "cache": "x"})]},
            "messages[0].tokens.input: expected a whole number of at least 0, got -1",
        ),
    ],
)
def test_what_is_no_chat_is_malformed_where_somebody_says_that_it_is_one(read, name, record, problem):
    with pytest.raises(ConfigError) as error:
        read(record, format=name)
    assert f": {problem}" in str(error.value)


@pytest.mark.parametrize("message", [7, 0.5, True, [], ["author"], "an author", None, {}])
def test_who_has_nodes_without_messages_of_an_author_is_not_chatgpt(read, message):
    with pytest.raises(ConfigError, match="nodes in it with a message of an"):
        read({"mapping": {"a": {"parent": None, "message": message}}})
