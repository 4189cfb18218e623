"""Who can use whose blocks: sessions, conversations and models; and what of that looks odd is said."""

import json

import pytest

from kv_sim.replay.columns import NO_SESSION
from kv_sim.replay.readers.opening import open_trace
from kv_sim.replay.readers.options import TraceOptions
from kv_sim.replay.readers.requests import sessions as sessions_module
from kv_sim.replay.readers.requests.naming import IdMeaning, IdScope
from kv_sim.replay.readers.requests.sessions import OwnIds, Retries
from kv_sim.replay.readers.requests.sharing import parse_sharing


def written(file, *records):
    file.write_text("".join(json.dumps(record) + "\n" for record in records))
    return file


def shared(columns):
    """How many blocks each request has of the one before it that has most of them."""
    prompts = [request.blocks for request in columns]
    return [
        max((sum(map(int.__eq__, one, other)) for other in prompts[:place]), default=0)
        for place, one in enumerate(prompts)
    ]


def times(columns):
    return [request.arrival_seconds for request in columns]


def call(t, ids, **more):
    return {"t": t, "type": "s", "in": 64 * len(ids), "out": 2, "hash_ids": ids, **more}


def session(*requests, **more):
    return {"id": "a", "block_size": 64, "hash_id_scope": "local", "requests": [*requests], **more}


def subagent(t, *requests, **more):
    return {"type": "subagent", "t": t, "agent_id": "x", "requests": [*requests], **more}


def mooncake(time, ids, **more):
    return {"timestamp": time, "input_length": 512 * len(ids), "output_length": 1, "hash_ids": ids, **more}


def lookup(time, hashes, request, model="m"):
    named = {"request_id": request, "model_name": model}
    return {"timestamp": time, **named, "chunk_size": 64, "seq_len": 64 * len(hashes), "chunk_hashes": hashes}


def chat(time, name, parent, ids):
    return {**mooncake(time, ids), "input_length": 16 * len(ids), "chat_id": name, "parent_chat_id": parent}


@pytest.mark.parametrize(
    ("inside", "expected"),
    [
        ([call(0, [1]), call(7, [1])], [0, 100, 107, 120]),
        ([call(100, [1]), call(107, [1])], [0, 100, 107, 120]),
        ([call(30, [1]), call(101, [1])], [0, 120, 130, 201]),
        ([subagent(5, call(0, [1]))], [0, 105, 120]),
        ([subagent(105, call(105, [1]))], [0, 105, 120]),
        ([subagent(105, call(0, [1]))], [0, 105, 120]),
        ([], [0, 120]),
    ],
)
def test_a_subagent_has_a_clock_of_its_own_or_the_session_s(tmp_path, inside, expected):
    trace = session(call(0, [1]), subagent(100, *inside), call(120, [1]))
    assert times(open_trace(written(tmp_path / "trace.jsonl", trace))) == expected


def test_sessions_of_one_name_are_several(tmp_path):
    for name in ("one", "two"):
        written(tmp_path / f"{name}.json", session(call(0, [1, 2])))
    assert shared(open_trace(tmp_path)) == [0, 0]
    staggered = open_trace(tmp_path, TraceOptions(stagger_seconds=60))
    assert times(staggered) == [0, 60]
    together = "2 sessions count their own time, so all begin at once (--stagger)"
    assert together in open_trace(tmp_path).notes and together not in staggered.notes
    written(tmp_path / "two.json", session(call(30, [1, 2])))
    assert together not in open_trace(tmp_path).notes


def test_models_don_t_use_each_other_s_blocks(tmp_path):
    file = tmp_path / "trace.jsonl"
    note = "requests of 2 models, none of which can use another's blocks: "
    written(file, *(lookup(time, ["a", "b"], time, model) for time, model in enumerate("xyxy")))
    for meaning in (IdMeaning.AUTO, IdMeaning.PREFIX):
        columns = open_trace(file, TraceOptions(ids=meaning))
        assert shared(columns) == [0, 0, 2, 2]
        assert columns.notes == ("format: lmcache", note + "x, y")
    calls = [call(0, [1, 2], model="x"), call(1, [1, 2], model="y"), call(2, [1, 2], model="x")]
    for scope in IdScope:
        columns = open_trace(written(file, session(*calls)), TraceOptions(scope=scope))
        assert shared(columns) == [0, 0, 2]
        assert columns.notes[-1] == note + "x, y"
    asked = {"input_length": 1024, "hash_ids": [1, 2]}
    columns = open_trace(
        written(file, *({**asked, "timestamp": n, "model": model} for n, model in enumerate("xyx")))
    )
    assert (shared(columns), columns.notes) == ([0, 0, 2], ("format: mooncake", note + "x, y"))


def test_a_request_without_a_model_has_the_only_one_of_what_it_lies_in(tmp_path):
    file = tmp_path / "trace.jsonl"
    inner = subagent(5, call(6, [1]), call(7, [1, 2], model=7), models=["y"])
    unsaid = subagent(8, call(9, [1]))
    assert shared(open_trace(written(file, session(call(0, [1, 2]), inner, unsaid, models=[7])))) == [0, 0, 2, 1]
    columns = open_trace(written(file, session(call(0, [1]), call(1, [1], model="x"), models=["x", "y"])))
    assert shared(columns) == [0, 0]
    assert columns.notes[-1].endswith(": none, x")


def test_one_model_changes_no_id(tmp_path):
    file = written(tmp_path / "trace.jsonl", lookup(0, [7, 8], 1, "x"))
    assert next(iter(open_trace(file, TraceOptions(ids=IdMeaning.PREFIX)))).blocks == (7, 8)


def test_the_chats_of_a_conversation_are_one_session(tmp_path):
    file = tmp_path / "trace.jsonl"
    first = [chat(0, 1, -1, [1]), chat(1, 2, 1, [1, 2]), chat(2, 3, 2, [1, 2, 3]), chat(3, 4, -1, [1])]
    cut_off = [chat(4, 5, 99, [1]), chat(5, 6, 99, [1, 2]), chat(6, 7, 6, [1, 2])]
    written(file, *first, *cut_off)
    assert shared(open_trace(file, TraceOptions(scope=IdScope.SESSION))) == [0, 1, 2, 0, 0, 1, 2]
    assert shared(open_trace(file)) == [0, 1, 2, 1, 1, 2, 2]


def test_a_conversation_that_is_told_backwards_is_split_and_that_is_said(tmp_path):
    file = tmp_path / "trace.jsonl"
    root, turn, last = chat(0, 1, -1, [1]), chat(0, 2, 1, [1, 2]), chat(0, 3, 2, [1, 2, 3])
    note = (
        "1 chat stands below one that goes on with it, and counts as another session (--id-scope session, "
        "--routing session)"
    )
    for order, shares, is_split in [
        ((root, turn, last), [0, 1, 2], False),
        ((turn, root, last), [0, 1, 2], False),
        ((root, turn, last, turn), [0, 1, 2, 2], False),
        ((root, last, turn), [0, 0, 1], True),
    ]:
        columns = open_trace(written(file, *order), TraceOptions(scope=IdScope.SESSION))
        assert shared(columns) == shares
        assert [one for one in columns.notes if " below one that goes on " in one] == [note] * is_split


@pytest.mark.parametrize("scopes", [("local", "global"), ("global", "local")])
def test_that_some_ids_are_a_session_s_own_is_said_wherever_it_stands(tmp_path, scopes):
    sessions = [session(call(0, [1]), hash_id_scope=scope) for scope in scopes]
    notes = open_trace(written(tmp_path / "trace.jsonl", *sessions)).notes
    assert any(note.startswith("ids are a session's own: ") for note in notes)


OWN = "ids of each of 3 sessions count up from {first}: if they are a session's own, say --id-scope session"


@pytest.mark.parametrize("first", [0, 1])
def test_ids_that_look_like_a_session_s_own_are_said(tmp_path, first):
    file = tmp_path / "trace.jsonl"
    turns = [[*range(first, first + length)] for length in (4, 4, 2)]
    records = [mooncake(time, ids, session_id=f"s{time}") for time, ids in enumerate(turns)]
    written(file, *records, mooncake(9, [first, 77], session_id="s0"), mooncake(9, [55]))
    note = OWN.format(first=first)
    assert note in open_trace(file).notes
    for scope in (IdScope.SESSION, IdScope.GLOBAL):
        assert note not in open_trace(file, TraceOptions(scope=scope)).notes


def test_chats_that_go_on_with_each_other_don_t_look_so(tmp_path):
    turns = [chat(1000 * turn, turn, turn - 1, [*range(3 + turn)]) for turn in range(4)]
    notes = open_trace(written(tmp_path / "trace.jsonl", *turns)).notes
    assert not any("count up from" in note for note in notes)


@pytest.mark.parametrize("scope", ["global", "local"])
def test_ids_that_look_so_are_not_asked_about_where_a_record_says_whose_they_are(tmp_path, scope):
    sessions = [session(call(0, [*range(length)]), hash_id_scope=scope) for length in (4, 4, 2)]
    notes = open_trace(written(tmp_path / "trace.jsonl", *sessions)).notes
    assert not any("count up from" in note for note in notes)


@pytest.mark.parametrize(
    "turns",
    [
        [[0, 1], [0, 1], [0, 1]],
        [[0, 1], [0, 1, 2]],
        [[0, 1], [0, 1, 2], [0, 1, 3]],
        [[0, 1], [0, 1, 2], [1, 2]],
        [[0, 1], [7, 8], [0, 1, 2], [0, 1, 2, 3]],
        [[2, 3], [2, 3, 4], [2, 3]],
        [["0", "1"], ["0"], ["0"]],
        [[], [], []],
    ],
)
def test_ids_that_all_sessions_share_don_t_look_so(turns):
    look = OwnIds()
    for name, ids in enumerate(turns):
        look.see(str(name), ids)
    assert look.note() is None


def test_so_many_sessions_are_looked_at(monkeypatch):
    monkeypatch.setattr(sessions_module, "_SESSIONS", 3)
    look = OwnIds()
    for name, ids in (("a", [0, 1]), ("b", [0]), ("c", [0, 1, 2]), ("d", [7])):
        look.see(name, ids)
    assert look.note() == OWN.format(first=0)


def test_a_lookup_that_is_there_again_is_counted(tmp_path, monkeypatch):
    file = tmp_path / "trace.jsonl"
    written(file, *(lookup(time, ["a"], request) for time, request in enumerate("aabca")))
    note = (
        "2 lookups have the request_id of one before them, and count like any other: a request that was tried "
        "again finds what it stored"
    )
    columns = open_trace(file, TraceOptions(sessions=True))
    assert note in columns.notes
    assert {*columns.sessions.tolist()} == {NO_SESSION}, "the name is that of one request"
    monkeypatch.setattr(sessions_module, "_RECENT", 2)
    recent = Retries()
    for name in ("a", "b", "c", "b", "a", None, None):
        recent.see(name)
    assert recent.note("lookup", "so").startswith("1 lookup has")


# -- nobody's ------------------------------------------------------------------------------------


@pytest.mark.parametrize("nobody", ["", "-", "None", "null"])
def test_what_a_log_writes_for_no_session_is_none(tmp_path, nobody):
    """BurstGPT's requests by API have a blank, and were all one session, which went to one server."""
    file = tmp_path / "trace.csv"
    rows = [f"{second},{session},1,m,64,1,65,x" for second, session in enumerate((nobody, "7", nobody, "7"))]
    names = "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type"
    file.write_text("\n".join([names, *rows]))
    told = {"time": "Timestamp", "input": "Request tokens", "session": "Session ID"}
    for options in ({}, {"columns": told}):
        found = open_trace(file, TraceOptions(sessions=True, sharing=parse_sharing("none"), **options))
        assert found.sessions.tolist() == [-1, 0, -1, 0]


@pytest.mark.parametrize("nobody", ["", "-", "None"])
def test_what_a_log_writes_for_no_name_is_none(tmp_path, nobody):
    file = tmp_path / "trace.jsonl"
    record = {"timestamp": 5, "prompt": "a" * 64, "session_id": nobody, "request_id": nobody}
    file.write_text(f"{json.dumps(record)}\n" * 2)
    found = open_trace(file, TraceOptions(sessions=True))
    assert found.sessions.tolist() == [-1, -1]
    assert not any("request_id" in note for note in found.notes)
