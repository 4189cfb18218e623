"""Transcripts of Claude Code: what stood above an answer is what a model was asked; and what Codex has alike."""

import json

import pytest
from kv_sim_foreign_traces import CASES, SAID, lengths, rolled, shared, transcribed
from kv_sim_transcripts import answer, call, characters, result, tokens, told, user

from kv_api import ConfigError
from kv_sim.replay.readers.catalogue import FORMATS
from kv_sim.replay.readers.formats import claude_code
from kv_sim.replay.readers.opening import open_trace
from kv_sim.replay.readers.options import OnError, TraceOptions

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
    assert notes[1].endswith(", system prompts and tools, which a transcript leaves out, are not counted")
    assert "usage says 58 prompt tokens where 32 are counted here" in notes[2]


def test_what_a_tool_gives_back_later_was_not_there_yet(read):
    requests, _ = read(
        user("a", None, 1, SAID),
        answer("b", "a", 2, [*call("x"), *call("y"), *call("never")], "1"),
        user("c", "b", 3, result("x", "left")),
        answer("d", "c", 4, "z" * 20, "2"),
        user("e", "b", 5, result("y", "right")),
    )
    called = ("assistant", sum(characters(call(name)) for name in ("x", "y", "never")))
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
        transcribed("r", "q", "hint", 2, {"content": "not said"}),
        {"type": "user", "uuid": "t", "parentUuid": "r", "sessionId": "s"},
        {"type": "assistant", "uuid": "u", "parentUuid": "t", "sessionId": "s"},
        answer("b", "u", 3, "z" * 20, "1"),
        {"type": "queue-operation", "sessionId": "s"},
    )
    assert lengths(requests) == [(0, tokens(("user", 107)), tokens(("assistant", 20)) - 3)]


def test_thoughts_are_text_without_what_they_are_signed_with(read):
    thought = [{"type": "thinking", "thinking": "t" * 30, "signature": "s" * 500}]
    closed, empty = [{"type": "redacted_thinking", "data": "q" * 90}], [{"type": "thinking"}]
    requests, _ = read(
        user("a", None, 1, SAID),
        answer("b", "a", 2, thought, "1"),
        answer("c", "b", 3, [{"type": "text", "text": "z" * 27, "thinking": "t"}], "1"),
        answer("r", "c", 3, closed, "1"),
        answer("s", "r", 3, empty, "1"),
        user("d", "s", 4, ["y" * 43]),
        answer("e", "d", 5, "z", "2"),
    )
    kept = [("assistant", characters(part)) for part in (closed, empty)]
    above = [("user", 107), ("assistant", 30), ("assistant", 27), *kept, ("user", 43)]
    assert [one.input_tokens for one in requests] == [32, tokens(*above)]


@pytest.mark.parametrize(("files", "said"), [(2, "1 request is repeated"), (3, "2 requests are repeated")])
def test_a_session_that_goes_on_in_another_file_counts_once(tmp_path, files, said):
    first = [user("a", None, 1, SAID), answer("b", "a", 2, "z" * 27, "1")]
    more = [user("c", "b", 3, "y" * 43), answer("d", "c", 4, "z", "2")]
    for name, lines in [("1.jsonl", first), ("2.jsonl", [*first, *more]), ("3.jsonl", first)][:files]:
        (tmp_path / name).write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    trace = open_trace(tmp_path)
    assert [one.input_tokens for one in trace] == [32, tokens(("user", 107), ("assistant", 27), ("user", 43))]
    assert f"{said}, in another file of its session: each counts once" in trace.notes


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


@pytest.mark.parametrize(
    ("bad", "place", "skipped"), [("a", 2, "2 malformed records were"), ("c", 4, "1 malformed record was")]
)
def test_a_message_that_can_not_be_read_makes_malformed_what_stands_below_it(tmp_path, bad, place, skipped):
    file = tmp_path / "trace.jsonl"
    lines = [
        *(user("a", None, 1, SAID), answer("b", "a", 2, "z", "1"), user("c", "b", 3, "y")),
        *(answer("d", "c", 4, "z", "2"), answer("g", "d", 4, "z", "2")),
        *(user("e", None, 5, "y"), answer("f", "e", 6, "z", "3")),
    ]
    next(line for line in lines if line["uuid"] == bad)["message"]["content"] = 5
    file.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    reason = f"{file}:{place}: above it, messages[0].content: expected text or a list of parts, got int"
    with pytest.raises(ConfigError) as refused:
        open_trace(file)
    assert str(refused.value) == f"{reason} (--on-error skip goes on)"
    trace = open_trace(file, TraceOptions(on_error=OnError.SKIP))
    assert len(trace) == (1 if bad == "a" else 2)
    assert any(note.startswith(f"{skipped} skipped, first: {reason}") for note in trace.notes)


def test_a_line_without_a_date_names_its_answer(tmp_path):
    file = tmp_path / "trace.jsonl"
    line = {**user("a", None, 1, SAID), "timestamp": "soon"}
    file.write_text(f"{json.dumps(line)}\n{json.dumps(answer('b', 'a', 2, 'z', '1'))}\n")
    with pytest.raises(ConfigError, match=r"trace\.jsonl:2: timestamp: expected a number or a date, got 'soon'"):
        open_trace(file)


def test_an_answer_without_a_name_is_a_line_and_who_speaks_is_what_a_line_is_of(read):
    lines = [
        user("a", None, 1, SAID),
        transcribed("b", "a", "assistant", 2, {"content": "z" * 11}),
        transcribed("c", "b", "assistant", 3, {"content": "z" * 11}),
    ]
    for line in lines:
        del line["message"]["role"]
    requests, _ = read(*lines)
    assert [one.input_tokens for one in requests] == [32, tokens(("user", 107), ("assistant", 11))]


def test_a_call_without_a_name_is_answered_by_what_stands_below_it_alone(read):
    called, given = [{"type": "tool_use", "name": "ls"}], [{"type": "tool_result", "content": "left"}]
    requests, _ = read(
        user("a", None, 1, SAID),
        answer("b", "a", 2, called, "1"),
        user("c", "b", 3, given),
        user("d", "b", 4, given),
        answer("e", "d", 5, "z", "2"),
    )
    above = [("user", 107), ("assistant", characters(called)), ("user", characters(given))]
    assert [one.input_tokens for one in requests] == [32, tokens(*above)]


def test_what_usage_leaves_out_is_nothing(read):
    taken, given = {"cache_read_input_tokens": 45}, {"output_tokens": 7}
    requests, notes = read(
        *(user("a", None, 1, SAID), answer("b", "a", 2, "z", "1", usage=taken)),
        *(user("c", None, 3, SAID), answer("d", "c", 4, "z", "2", usage=given)),
    )
    assert lengths(requests) == [(0, 32, 0), (2, 32, 7)]
    assert "usage says 45 prompt tokens where 64 are counted here" in notes[2]


def test_what_a_line_says_is_made_once_for_all_that_stands_below_it(read, monkeypatch):
    made, lines, chat = [], [], claude_code.chat
    monkeypatch.setattr(claude_code, "chat", lambda asked: made.append(asked) or chat(asked))
    for turn in range(20):
        lines.append(user(f"{turn}", f"of {turn - 1}", 1, "y"))
        lines.append(answer(f"of {turn}", f"{turn}", 1, "z", f"{turn}", usage={"output_tokens": 1}))
    requests, _ = read(*lines)
    assert (len(requests), len(made)) == (20, len(lines) - 1), "all but the last answer stand above another"


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
