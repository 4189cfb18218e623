"""Transcripts of coding agents: what stood above an answer is what a model was asked."""

import json

import pytest
from kv_sim_more_traces import CASES, SAID, lengths, rolled, shared, transcribed

from kv_api import ConfigError
from kv_sim.replay.readers.catalogue import FORMATS
from kv_sim.replay.readers.opening import open_trace
from kv_sim.replay.readers.options import OnError, TraceOptions

ROLE = {"user": len("<|user|>"), "assistant": len("<|assistant|>")}


def tokens(*said):
    """Of a prompt of messages, each a role and its characters, and of who answers."""
    return -(-sum(ROLE[role] + characters for role, characters in (*said, ("assistant", 0))) // 4)


def user(uuid, above, second, content, **more):
    return transcribed(uuid, above, "user", second, {"content": content}, **more)


def answer(uuid, above, second, content, message, **more):
    model = {"id": message, "model": "m", "content": content}
    return transcribed(uuid, above, "assistant", second, {**model, **more})


def call(name):
    return [{"type": "tool_use", "id": name, "name": "ls", "input": {}}]


def result(name, said):
    return [{"type": "tool_result", "tool_use_id": name, "content": said}]


def characters(part):
    return len(json.dumps(part[0], sort_keys=True))


# -- Claude Code ---------------------------------------------------------------------------------


def test_an_answer_of_several_lines_is_one_request_and_all_its_calls_are_answered_below_it(read):
    used = {"input_tokens": 3, "cache_read_input_tokens": 50, "cache_creation_input_tokens": 5}
    requests, notes = read(
        user("a", None, 1, SAID),
        answer("b", "a", 2, call("x"), "1", usage={**used, "output_tokens": 1}),
        answer("c", "b", 3, call("y"), "1", usage={**used, "output_tokens": 9}),
        user("d", "b", 4, result("x", "left")),
        user("e", "c", 5, result("y", "right")),
        answer("f", "e", 6, "z" * 20, "2"),
    )
    called = [("assistant", characters(call("x"))), ("assistant", characters(call("y")))]
    given = [("user", characters(result("x", "left"))), ("user", characters(result("y", "right")))]
    assert lengths(requests) == [(0, tokens(("user", 107)), 9), (4, tokens(("user", 107), *called, *given), 9)]
    assert shared(*requests) == 2, "the second begins with all of the first"
    assert notes[0] == "format: claude-code"
    assert "usage says 58 prompt tokens where 32 are counted here" in notes[2]


def test_what_a_tool_gives_back_later_was_not_there_yet(read):
    requests, _ = read(
        user("a", None, 1, SAID),
        answer("b", "a", 2, [*call("x"), *call("y")], "1"),
        user("c", "b", 3, result("x", "left")),
        answer("d", "c", 4, "z" * 20, "2"),
        user("e", "b", 5, result("y", "right")),
    )
    called = ("assistant", characters(call("x")) + characters(call("y")))
    given = ("user", characters(result("x", "left")))
    assert requests[1].input_tokens == tokens(("user", 107), called, given)


def test_who_goes_another_way_from_some_line_on_has_what_is_above_that(read):
    requests, _ = read(
        user("a", None, 1, SAID),
        answer("b", "a", 2, "z" * 27, "1"),
        user("c", "b", 3, "y" * 43),
        answer("d", "c", 4, "z" * 7, "2"),
        user("e", "b", 5, "w" * 83),
        answer("f", "e", 6, "z" * 7, "3"),
    )
    begin = [("user", 107), ("assistant", 27)]
    assert [one.input_tokens for one in requests] == [
        tokens(begin[0]),
        tokens(*begin, ("user", 43)),
        tokens(*begin, ("user", 83)),
    ]


def test_a_subagent_and_a_compacted_session_begin_anew(read):
    requests, _ = read(
        user("a", None, 1, SAID),
        answer("b", "a", 2, call("x"), "1"),
        user("s", None, 2.5, "s" * 43, isSidechain=True),
        answer("t", "s", 3, "z", "2"),
        user("c", "b", 4, result("x", "done")),
        answer("d", "c", 5, "z", "3"),
        {"type": "system", "subtype": "compact_boundary", "uuid": "e", "parentUuid": None, "sessionId": "s"},
        user("f", "e", 7, "y" * 23),
        answer("g", "f", 8, "z", "4"),
    )
    whole = tokens(("user", 107), ("assistant", characters(call("x"))), ("user", characters(result("x", "done"))))
    assert [(one.arrival_seconds, one.input_tokens) for one in requests] == [
        *((0, tokens(("user", 107))), (1.5, tokens(("user", 43)))),
        *((3, whole), (6, tokens(("user", 23)))),
    ]


def test_lines_that_say_nothing_stand_between_and_what_the_program_says_is_nobodys(read):
    requests, _ = read(
        user("a", None, 1, SAID),
        {"type": "progress", "uuid": "p", "parentUuid": "a", "sessionId": "s", "data": {}},
        transcribed("n", "p", "assistant", 2, {"id": "0", "model": "<synthetic>", "content": "API Error"}),
        {"type": "attachment", "uuid": "q", "parentUuid": "n", "sessionId": "s", "message": 5},
        answer("b", "q", 3, "z" * 20, "1"),
        {"type": "queue-operation", "sessionId": "s"},
    )
    assert lengths(requests) == [(0, tokens(("user", 107)), tokens(("assistant", 20)) - 3)]


def test_thoughts_are_text_without_what_they_are_signed_with(read):
    thought = [{"type": "thinking", "thinking": "t" * 30, "signature": "s" * 500}]
    requests, _ = read(
        user("a", None, 1, SAID),
        answer("b", "a", 2, thought, "1"),
        answer("c", "b", 3, [{"type": "text", "text": "z" * 27}], "1"),
        user("d", "c", 4, "y" * 43),
        answer("e", "d", 5, "z", "2"),
    )
    above = [("user", 107), ("assistant", 30), ("assistant", 27), ("user", 43)]
    assert [one.input_tokens for one in requests] == [32, tokens(*above)]


def test_a_session_that_goes_on_in_another_file_counts_once(tmp_path):
    first = [user("a", None, 1, SAID), answer("b", "a", 2, "z" * 27, "1")]
    more = [user("c", "b", 3, "y" * 43), answer("d", "c", 4, "z", "2")]
    for name, lines in (("1.jsonl", first), ("2.jsonl", [*first, *more])):
        (tmp_path / name).write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    trace = open_trace(tmp_path)
    assert [one.input_tokens for one in trace] == [32, tokens(("user", 107), ("assistant", 27), ("user", 43))]
    assert "1 request is there again, where a session goes on elsewhere: each counts once" in trace.notes


def test_a_folder_of_projects_has_more_than_transcripts(tmp_path):
    files = {
        "p/sessions-index.json": '{"version": 1}',
        "p/1.jsonl": CASES["claude-code"][0],
        "p/1/subagents/agent-a.jsonl": f"{json.dumps(answer('b', None, 2, 'z', '3'))}\n",
        "p/1/subagents/agent-a.meta.json": '{"agentType": "any"}',
        "p/1/tool-results/b.txt": 'some "text\nof two lines, or so',
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    trace = open_trace(tmp_path)
    assert len(trace) == 3
    left_out = "p/1/tool-results/b.txt, p/sessions-index.json"
    assert f"files of the folder that were left out for their names: 2 ({left_out})" in trace.notes


def test_what_is_cut_off_above_is_left_out(read):
    requests, _ = read(user("c", "b", 3, "y" * 43), answer("d", "c", 4, "z", "2"), answer("e", "e", 5, "z", "3"))
    assert [one.input_tokens for one in requests] == [tokens(("user", 43)), tokens()]


def test_a_message_that_can_not_be_read_makes_malformed_what_stands_below_it(tmp_path):
    file = tmp_path / "trace.jsonl"
    lines = [
        *(user("a", None, 1, SAID), answer("b", "a", 2, "z", "1"), user("c", "b", 3, 5)),
        *(answer("d", "c", 4, "z", "2"), user("e", None, 5, "y"), answer("f", "e", 6, "z", "3")),
    ]
    file.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    reason = f"{file}:4: above it, messages[0].content: expected text or a list of parts, got int"
    with pytest.raises(ConfigError) as refused:
        open_trace(file)
    assert str(refused.value) == f"{reason} (--on-error skip goes on)"
    trace = open_trace(file, TraceOptions(on_error=OnError.SKIP))
    assert len(trace) == 2
    assert f"1 malformed record was skipped, first: {reason}" in trace.notes


def test_a_line_without_a_date_names_its_answer(tmp_path):
    file = tmp_path / "trace.jsonl"
    line = {**user("a", None, 1, SAID), "timestamp": "soon"}
    file.write_text(f"{json.dumps(line)}\n{json.dumps(answer('b', 'a', 2, 'z', '1'))}\n")
    with pytest.raises(ConfigError, match=r"trace\.jsonl:2: timestamp: expected a number or a date, got 'soon'"):
        open_trace(file)


def test_an_answer_without_a_name_is_a_line(read):
    unnamed = {"content": "z" * 11}
    requests, _ = read(
        user("a", None, 1, SAID),
        transcribed("b", "a", "assistant", 2, unnamed),
        transcribed("c", "b", "assistant", 3, unnamed),
    )
    assert [one.input_tokens for one in requests] == [32, tokens(("user", 107), ("assistant", 11))]


# -- Codex ---------------------------------------------------------------------------------------


def item(second, kind, **more):
    return rolled(second, "response_item", type=kind, **more)


def told(second, text, role="user"):
    return item(second, "message", role=role, content=[{"type": "input_text", "text": text}])


def counted(second, **usage):
    return rolled(second, "event_msg", type="token_count", info={"last_token_usage": usage} if usage else None)


def test_items_of_a_model_in_a_row_are_one_answer(read):
    instructions = rolled(0, "session_meta", id="s", base_instructions={"text": "i" * 44})
    requests, notes = read(
        instructions,
        rolled(0.5, "turn_context", model="m"),
        told(1, SAID),
        item(2, "reasoning", summary=[], encrypted_content="q" * 90),
        item(3, "function_call", name="ls", call_id="x"),
        counted(3.5),
        counted(3.6, input_tokens=64, output_tokens=11),
        counted(3.7, input_tokens=1, output_tokens=1),
        item(4, "function_call_output", call_id="x", output="o" * 50),
        item(5, "message", role="assistant", content=[{"type": "output_text", "text": "z" * 27}]),
    )
    begin = len("<|instructions|>") + 44
    thought, asked, gave = {"type": "reasoning", "summary": []}, {"name": "ls"}, {"output": "o" * 50}
    items = [
        f"<|{one['type']}|>{json.dumps(one, sort_keys=True)}"
        for one in (
            thought,
            {**asked, "type": "function_call", "call_id": "x"},
            {**gave, "type": "function_call_output", "call_id": "x"},
        )
    ]
    first = begin + ROLE["user"] + 107
    after = [text + ROLE["assistant"] for text in (first, first + sum(map(len, items)))]
    assert lengths(requests) == [(0, -(-after[0] // 4), 11), (3, -(-after[1] // 4), 10)]
    assert notes[0] == "format: codex"


def test_what_comes_first_is_that_of_the_first_line_though_it_went_on_from_another(read):
    begun = [rolled(0, "session_meta", id="s", instructions="i" * 44), rolled(0, "session_meta", id="t")]
    requests, _ = read(*begun, told(1, SAID), told(2, "z", "assistant"))
    assert [one.input_tokens for one in requests] == [-(-(len("<|instructions|>") + 44 + 128) // 4)]


@pytest.mark.parametrize(
    ("compacted", "left"),
    [
        ({"message": "m" * 43}, 43),
        ({"message": "?", "replacement_history": [{"type": "message", "role": "user", "content": "r" * 63}]}, 63),
    ],
)
def test_a_compacted_session_goes_on_with_what_took_its_place(read, compacted, left):
    requests, _ = read(
        told(1, SAID),
        told(2, "z" * 27, "assistant"),
        rolled(3, "compacted", **compacted),
        told(4, "z" * 7, "assistant"),
        told(5, "y" * 3),
        told(6, "z", "assistant"),
    )
    assert [one.input_tokens for one in requests] == [
        *(32, tokens(("user", left)), tokens(("user", left), ("assistant", 7), ("user", 3))),
    ]


def test_an_item_that_can_not_be_read_is_said(tmp_path):
    file = tmp_path / "trace.jsonl"
    lines = [told(1, SAID), item(2, "message", role="user", content=5), told(3, "z", "assistant")]
    file.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    with pytest.raises(ConfigError) as refused:
        open_trace(file)
    reason = "in it or above it, input[0].content: expected text or a list of parts, got int"
    assert str(refused.value) == f"{file}:3: {reason} (--on-error skip goes on)"


# -- both ----------------------------------------------------------------------------------------


def in_codex(name, model):
    return [
        rolled(0, "session_meta", id=name),
        rolled(0, "turn_context", model=model),
        rolled(0, "turn_context", cwd="elsewhere"),
        *(told(1, SAID), told(3, "z", "assistant"), told(5, "y"), told(7, "z", "assistant")),
    ]


def in_claude_code(name, model):
    lines = [
        *(user("a", None, 1, SAID), answer("b", "a", 3, "z", f"{name} 1", model=model)),
        *(user("c", "b", 5, "y"), answer("d", "c", 7, "z", f"{name} 2", model=model)),
    ]
    return [{**line, "sessionId": name} for line in lines]


@pytest.mark.parametrize("lines_of", [in_claude_code, in_codex])
def test_sessions_of_several_files_go_by_one_clock(tmp_path, lines_of):
    for name, model in (("s", "m"), ("t", "n")):
        text = "".join(f"{json.dumps(line)}\n" for line in lines_of(name, model))
        (tmp_path / f"{name}.jsonl").write_text(text)
    trace = open_trace(tmp_path, TraceOptions(sessions=True))
    assert [one.arrival_seconds for one in trace] == [0, 0, 4, 4]
    assert [*trace.sessions] == [0, 1, 0, 1]
    assert "requests of 2 models, none of which can use another's blocks: m, n" in trace.notes


@pytest.mark.parametrize("name", ["claude-code", "codex"])
def test_a_broken_line_is_named_or_skipped(tmp_path, name):
    file = tmp_path / "trace.jsonl"
    file.write_text(CASES[name][0] + '{"type": "us\n')
    number = len(CASES[name][0].splitlines()) + 1
    with pytest.raises(ConfigError, match=rf"trace\.jsonl:{number}: not JSON"):
        open_trace(file)
    assert len(open_trace(file, TraceOptions(on_error=OnError.SKIP))) == 2


@pytest.mark.parametrize("name", ["claude-code", "codex"])
def test_without_an_answer_there_is_no_request(tmp_path, name):
    file = tmp_path / "trace.jsonl"
    file.write_text(CASES[name][0].splitlines()[0])
    with pytest.raises(ConfigError, match="there is no request in it"):
        open_trace(file)


def test_a_line_says_by_more_than_its_type_what_it_is_of():
    for field in ("sessionId", "leafUuid", "snapshot"):
        assert FORMATS["claude-code"].is_of({"type": "a", field: 1})
        assert not FORMATS["claude-code"].is_of({field: 1})
    assert not FORMATS["claude-code"].is_of({"type": "a", "uuid": "b"})
