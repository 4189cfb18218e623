"""What logs of gateways, tracing services and load generators say of a request beside what was asked."""

import json

import pytest
from kv_sim_foreign_traces import ASKED, MORE, SAID, lengths, user

from kv_api import ConfigError
from kv_sim.replay.readers.opening import open_trace
from kv_sim.replay.readers.options import TraceOptions
from kv_sim.replay.readers.requests.sharing import parse_sharing

NONE = parse_sharing("none")


def spent(second: int, **more):
    """A row of LiteLLM's spend logs."""
    times = {"startTime": f"2026-01-31T10:00:0{second}Z", "endTime": "2026-01-31T10:01:00Z"}
    counts = {"prompt_tokens": 32, "completion_tokens": 7}
    return {"request_id": str(second), "call_type": "acompletion", "cache_hit": "False", **times, **counts, **more}


OTHER_CALLS = ("aembedding", "rerank", "amoderation", "aimage_generation", "atranscription", "aspeech")
FROM_CACHE = "1 request was left out: answered by the gateway's own cache (cache_hit)"
NO_TEXT = f"{len(OTHER_CALLS)} requests were left out: another call than one for text (call_type)"


@pytest.mark.parametrize("asked", [{}, {"proxy_server_request": ASKED}])
def test_what_no_model_had_to_go_on_with_is_left_out_and_said(read, asked):
    others = [
        spent(1, call_type=call, **asked and {"proxy_server_request": {"input": ["a"]}}) for call in OTHER_CALLS
    ]
    kept = [spent(second, cache_hit=hit, **asked) for second, hit in ((2, None), (3, "None"), (4, False))]
    calls = ("completion", "anthropic_messages", "aresponses", "", None)
    kept += [spent(5, call_type=call, **asked) for call in calls]
    requests, notes = read(spent(0, **asked), *others, spent(1, cache_hit="True", **asked), *kept, sharing=NONE)
    assert lengths(requests) == [(second, 32, 7) for second in (0, 2, 3, 4, 5, 5, 5, 5, 5)]
    assert NO_TEXT in notes and FROM_CACHE in notes
    _, notes = read(spent(0, **asked), *kept, sharing=NONE)
    assert not any("left out" in note for note in notes)


@pytest.mark.parametrize("apart", ["model_parameters", "optional_params", "kwargs"])
def test_litellm_keeps_tools_and_instructions_beside_the_messages(read, apart):
    tools = [{"type": "function", "function": {"name": "look", "description": "z" * 80}}]
    for asked in ({"tools": tools}, {"instructions": SAID}):
        (whole,), _ = read({**ASKED, **asked})
        (found,), _ = read({**ASKED, apart: {**asked, "messages": [], "model": "of no account"}})
        assert found.blocks == whole.blocks and len(whole.blocks) > 2
    (found,), _ = read({**ASKED, apart: "{}"})
    assert found.input_tokens == 32


def test_tools_that_openhands_put_into_words_count_once(read):
    tools = [{"type": "function", "function": {"name": "look"}}]
    (usual,), _ = read(ASKED)
    (found,), _ = read({**ASKED, "tools": tools, "raw_messages": ASKED["messages"]})
    assert found == usual


def test_a_table_says_it_as_well(tmp_path):
    file = tmp_path / "spent.csv"
    rows = [spent(0), spent(1, cache_hit="True"), spent(2, call_type="embedding"), spent(3, status="failure")]
    names = [*rows[-1]]
    cells = ("".join(f"{row.get(name, '')}," for name in names)[:-1] for row in rows)
    file.write_text("\n".join([",".join(names), *cells]) + "\n")
    columns = open_trace(file, TraceOptions(sharing=NONE))
    assert lengths(columns) == [(0, 32, 7), (3, 32, 7)]
    assert [note for note in columns.notes if note.startswith("1 request")] == [
        "1 request failed, according to a status or an error; each counts like any other request",
        FROM_CACHE,
        "1 request was left out: another call than one for text (call_type)",
    ]


def test_rows_with_lengths_alone_have_sessions(tmp_path):
    file = tmp_path / "spent.jsonl"
    rows = [spent(second, session_id=name) for second, name in enumerate(("x", "y", None, "x"))]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    columns = open_trace(file, TraceOptions(sharing=NONE, sessions=True))
    assert [*columns.sessions] == [0, 1, -1, 0]


def test_a_hit_of_somebody_else_s_cache_counts(read):
    """Only LiteLLM's `cache_hit` is that of whole answers; a server may say so of its prefixes."""
    states = ("MISS", "DISABLED", None, "hits")
    requests, notes = read(
        {**ASKED, "cache_hit": True},
        *({**ASKED, "cache_status": state} for state in states),
        *({**ASKED, "cache_status": state} for state in ("HIT", "SEMANTIC HIT", "hit")),
    )
    assert len(requests) == 1 + len(states)
    assert notes[-1] == "3 requests were left out: answered by the gateway's own cache (cache_status)"


def test_a_trace_of_nothing_else_has_no_request(read):
    with pytest.raises(ConfigError, match="there is no request in it"):
        read(spent(0, call_type="aembedding"))


# -- tracing services ----------------------------------------------------------------------------

GENERATION = {"traceId": "t", "type": "GENERATION", "startTime": "2026-01-31T10:00:00Z", "input": [user(SAID)]}


@pytest.mark.parametrize(
    ("usage", "answer", "told"),
    [
        ({"input": 20, "input_cached_tokens": 12, "output": 3, "output_reasoning_tokens": 4, "total": 39}, 7, 32),
        ('{"input": "20", "output": "7"}', 7, 20),
        (
            {"input_tokens": 2, "cache_read_input_tokens": 80, "output_tokens": 7, "output_tokens_details": {}},
            7,
            82,
        ),
        ({"prompt_tokens": 50, "completion_tokens": 7}, 7, 50),
        ({"input": 20, "output": None}, 0, 20),
        ({"input": 0, "output": 0}, 0, None),
        ({}, 0, None),
    ],
)
def test_langfuse_s_counts_are_apart_from_each_other(read, usage, answer, told):
    """A token of a thought is none of `output`, nor one of a cache of `input`."""
    field = "usage" if "prompt_tokens" in usage else "usageDetails"
    requests, notes = read({**GENERATION, "parentObservationId": None, field: usage})
    assert lengths(requests) == [(0, 32, answer)]
    said = [note.split()[2] for note in notes if note.startswith("usage says")]
    assert said == ([] if told in (None, 32) else [str(told)])


def test_what_failed_is_said_of_what_was_observed(read):
    broken = [{**GENERATION, "level": level, "usageDetails": {}} for level in ("ERROR", "DEFAULT", "WARNING")]
    runs = [
        {"run_type": "llm", "start_time": "2026-01-31T10:00:00", "inputs": ASKED, "error": error}
        for error in (None, "it broke")
    ]
    for records in (broken, runs):
        requests, notes = read(*records)
        assert len(requests) == len(records)
        assert notes[-1].startswith("1 request failed")


def test_what_was_observed_may_lie_in_a_table(tmp_path):
    asked = json.dumps([user(SAID)])
    told = json.dumps({"input": 90, "output": 7})
    time = "2026-01-31T10:00:00Z"
    run = json.dumps(ASKED)
    tables = (
        (
            ("type", "startTime", "input", "traceId", "usageDetails", "sessionId", "level", "model"),
            ("SPAN", time, "any thing", "t", "", "", "", ""),
            ("GENERATION", time, asked, "t", told, "", "ERROR", "m"),
            ("GENERATION", time, asked, "t", "", "", "", ""),
        ),
        (
            ("run_type", "start_time", "inputs", "prompt_tokens", "completion_tokens", "error"),
            ("chain", time, "{}", "", "", ""),
            ("llm", time, run, "90", "7", "it broke"),
            ("llm", time, run, "", "", ""),
        ),
    )
    for name, table in zip(("langfuse", "langsmith"), tables, strict=True):
        file = tmp_path / f"{name}.csv"
        rows = (",".join('"' + cell.replace('"', '""') + '"' for cell in row) for row in table)
        file.write_text("\n".join(rows) + "\n")
        columns = open_trace(file, TraceOptions(sessions=True))
        assert columns.notes[0] == f"format: {name}"
        assert lengths(columns) == [(0, 32, 7), (0, 32, 0)]
        assert [*columns.sessions] == [-1, -1], "an empty cell is no session"
        assert any(note.startswith("usage says 90 prompt tokens where 32") for note in columns.notes)
        assert any(note.startswith("1 request failed") for note in columns.notes)


def test_langsmith_s_columns_are_json(read):
    message = {"lc": 1, "id": ["langchain", "schema", "HumanMessage"], "kwargs": {"content": SAID}}
    run = {"run_type": "llm", "start_time": "2026-01-31T10:00:00", "completion_tokens": 7, "prompt_tokens": 64}
    requests, notes = read(*({**run, "inputs": json.dumps(one)} for one in ({"messages": [[message]]}, ASKED)))
    assert lengths(requests) == [(0, 32, 7), (0, 32, 7)]
    assert any(note.startswith("usage says 128 prompt tokens where 64 are counted here") for note in notes)


# -- load generators -----------------------------------------------------------------------------


def sent(second: float, *responses, **more):
    """A record that aiperf writes with --export-level raw."""
    when = {"request_start_ns": 1_790_000_000_000_000_000 + int(second * 1e9), "x_correlation_id": "a"}
    return {
        "metadata": when,
        "start_perf_ns": 7,
        "payload": ASKED,
        "status": 200,
        "responses": [*responses],
        **more,
    }


def test_what_aiperf_sent_has_its_own_time(tmp_path, read):
    usage = {"usage": {"prompt_tokens": 90, "completion_tokens": 7}}
    pieces = [{"name": "data", "value": json.dumps(piece)} for piece in ({"choices": []}, usage)]
    requests, notes = read(
        sent(0, {"perf_ns": 8, "text": json.dumps(usage)}),
        sent(2.5, {"packets": [*pieces, {"name": "data", "value": "[DONE]"}]}, payload=MORE),
        sent(3, {"text": "no JSON"}, "?", {"packets": 5}, status=500),
        sent(4, responses=None),
    )
    assert lengths(requests) == [(0, 32, 7), (2.5, 45, 7), (3, 32, 0), (4, 32, 0)]
    assert notes[0] == "format: aiperf" and notes[-1].startswith("1 request failed")
    assert any(note.startswith("usage says 180 prompt tokens where 77") for note in notes)
    file = tmp_path / "raw.jsonl"
    file.write_text("".join(json.dumps(one) + "\n" for one in (sent(0), sent(1), {**sent(2), "metadata": None})))
    with pytest.raises(ConfigError, match=r":3: it has no time, but a request above it has one"):
        open_trace(file)
    file.write_text("".join(json.dumps(one) + "\n" for one in (sent(0), sent(1))))
    assert [*open_trace(file, TraceOptions(sessions=True)).sessions] == [0, 0]


def test_what_a_load_generator_could_not_do_is_said(read):
    run = {"input_lens": [5, 6, 7], "output_lens": [1, 0, 1], "errors": ["", "refused", ""]}
    _, notes = read(run, sharing=NONE)
    assert notes[-1].startswith("1 request failed")
    _, notes = read({**run, "errors": None}, {**run, "errors": []}, sharing=NONE)
    assert not any("failed" in note for note in notes)
    with pytest.raises(ConfigError, match=":1: errors: expected 3, as many as input_lens, got 1"):
        read({**run, "errors": [""]}, sharing=NONE)
    kinds = {
        kind: [{"request_start_time": 5.5, "prompt_tokens": 9, "output_tokens": 7}]
        for kind in ("successful", "incomplete", "errored")
    }
    _, notes = read({"benchmarks": [{"requests": kinds}]}, sharing=NONE)
    assert notes[-1].startswith("1 request failed")


def test_a_delay_may_be_called_as_dynamo_does(read):
    turn = {"session_id": "a", "input_length": 512, "output_length": 1, "hash_ids": [1]}
    requests, _ = read(*({**turn, **more} for more in ({"timestamp": 0}, {"delay_ms": 500}, {"delay": 250})))
    assert [one.arrival_seconds for one in requests] == [0, 0.5, 0.75]
    with pytest.raises(ConfigError, match=":1: delay_ms: expected at least 0, got -1"):
        read({**turn, "delay_ms": -1})
