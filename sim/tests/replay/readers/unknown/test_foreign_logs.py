"""Logs under names that no format has, and requests in them that are no prompts: what a reader is told of them."""

import json
import re

import pytest
from kv_sim_foreign_traces import ASKED, lengths, user

from kv_api import ConfigError
from kv_sim.replay.readers.opening import open_trace
from kv_sim.replay.readers.options import OnError


@pytest.mark.parametrize("body", [ASKED, json.dumps(ASKED)], ids=["object", "text"])
def test_what_an_api_was_asked_is_seen_under_any_name(read, body):
    with pytest.raises(ConfigError) as refused:
        read({"when": 5, "BackendRequestBody": body})
    hint = "(BackendRequestBody is a request to an API: rename it to request_body, its answer to response_body)"
    assert f" no known format has the fields when, BackendRequestBody {hint}; expected" in str(refused.value)
    answer = json.dumps({"usage": {"completion_tokens": 7}})
    assert lengths(read({"request_body": body, "response_body": answer})[0]) == [(0, 32, 7)]


@pytest.mark.parametrize(
    "inner",
    [
        {"@timestamp": 5, "request_body": json.dumps(ASKED)},
        {"messages": [user("a"), {"role": "assistant", "content": "b"}]},
    ],
)
def test_a_record_within_another_one_is_seen(read, inner):
    said = "(_source is a readable record: jq -c '._source' takes it out)"
    with pytest.raises(ConfigError, match=re.escape(f"fields _id, _source {said}")):
        read({"_id": "a", "_source": inner})
    said = "(log is a readable record: jq -c '.log | fromjson' takes it out)"
    with pytest.raises(ConfigError, match=re.escape(f"fields log, stream {said}")):
        read({"log": json.dumps(inner), "stream": "stdout"})


def test_jq_gets_names_as_it_reads_them_and_no_table(tmp_path, read):
    """As CloudWatch's."""
    inner = json.dumps({"@timestamp": 5, "request_body": json.dumps(ASKED)})
    with pytest.raises(ConfigError) as refused:
        read({"@message": inner})
    assert """(@message is a readable record: jq -c '."@message" | fromjson' takes it out)""" in str(refused.value)
    table = tmp_path / "log.csv"
    table.write_text('@ptr,@message\na,"' + inner.replace('"', '""') + '"\n')
    with pytest.raises(ConfigError) as refused:
        open_trace(table)
    said = "(@message is a readable record: JSON lines of that column alone can be read)"
    assert said in str(refused.value) and "jq -c" not in str(refused.value)


def test_so_is_one_of_a_format_with_fields_of_its_own(read):
    log = {"schemaType": "ModelInvocationLog", "timestamp": "2026-01-31T10:00:00Z", "input": {}}
    said = "(message is a readable record: jq -c '.message | fromjson' takes it out)"
    with pytest.raises(ConfigError, match=re.escape(f"fields id, message {said}")):
        read({"id": 5, "message": json.dumps(log)})


@pytest.mark.parametrize(
    ("header", "hint"),
    [
        (
            '2026-05-03T09:00:00Z stdout F {"messages": [{"role": "user", "content": "a"}]}',
            "(remove what is before",
        ),
        (
            f"INFO 11-26 09:00:00 Received request a: prompt: '{'x' * 9}', params: SamplingParams(n=1)",
            "for people?",
        ),
        ("0.5,ChatGPT,400,20", "(a table's first line must name its columns)"),
        ("when,ChatGPT,400", "(a table's first line must name its columns)"),
        ("when,v2,prompt 1", None),
    ],
)
def test_a_line_that_is_no_header_is_seen(tmp_path, header, hint):
    path = tmp_path / "log.txt"
    path.write_text(f"{header}\n{header}\n")
    with pytest.raises(ConfigError, match=r"1: no known format has the columns") as refused:
        open_trace(path)
    if hint is None:
        assert " (" not in str(refused.value)
    else:
        assert hint in str(refused.value)


def test_a_first_row_with_a_number_twice_is_no_header(tmp_path):
    """As of ServeGen's tables of rates."""
    path = tmp_path / "chunk-0-trace.csv"
    path.write_text("0,0,0,,0,0\n600,0,0,,0,0\n")
    with pytest.raises(
        ConfigError, match=r"two columns are called '0' \(a table's first line must name its columns"
    ):
        open_trace(path)


@pytest.mark.parametrize(
    ("record", "problem"),
    [
        (
            {"request_body": '{"messages": [{"role": "us'},
            'request_body: expected the JSON of what an API was asked, got \'{"messages"',
        ),
        (
            {"request": "GET /health HTTP/1.1"},
            "request: expected the JSON of what an API was asked, got 'GET /health",
        ),
        ({"request": "GET / HTTP/1.1", "request_body": "-"}, "request_body: expected the JSON of what an API was"),
        (
            {"input": [user("a")], "conversation": "c1"},
            "conversation: expected a whole prompt, or what was answered as well",
        ),
        (
            {"input": [user("a")], "conversation": {"id": "c1"}},
            "conversation: expected a whole prompt, or what was",
        ),
        (
            {"request": "POST /v1/embeddings HTTP/1.1", "request_body": {"input": "a"}},
            "input: expected what a model",
        ),
        (
            {"uri": "/v1/embeddings", "body": {"input": ["a"]}},
            "input: expected what a model goes on with, got what is",
        ),
        (
            {"body": {"model": "text-embedding-3", "input": "a"}},
            "input: expected what a model goes on with, got what",
        ),
    ],
)
def test_what_is_no_whole_prompt_is_malformed_among_those_that_are(read, record, problem):
    requests, notes = read(ASKED, record, on_error=OnError.SKIP)
    assert len(requests) == 1
    assert f"trace.jsonl:2: {problem}" in notes[-1]


@pytest.mark.parametrize(
    "failed",
    [
        *({"status": 429}, {"status_code": "500"}, {"response_code": 400}, {"response": {"status": 503}}),
        *({"response_status": 429}, {"response_status_code": 502}, {"status": "failure"}, {"status": "ERROR"}),
        *({"error": {"error_type": "TimeoutError"}}, {"error": "it was"}, {"exception": "it was"}),
    ],
)
def test_a_request_that_failed_counts_and_is_said(read, failed):
    good = [{**ASKED, "status": status} for status in (200, "200", None, "completed", 4290, "0", 399)]
    good += [{**ASKED, "error": error} for error in (None, "", {})]
    requests, notes = read(*good, {**ASKED, **failed})
    assert len(requests) == 11
    said = "1 request failed, according to a status or an error; each counts like any other request"
    assert said in notes
    assert not any("failed" in note for note in read(*good)[1])


def test_a_log_of_gemini_cli_s_telemetry_is_called_that(read):
    record = {"hrTime": [1, 0], "attributes": {"event.name": "gemini_cli.api_request"}, "_body": "asked"}
    with pytest.raises(ConfigError, match=re.escape("Gemini CLI saves its requests in ~/.gemini/tmp")):
        read(record)
