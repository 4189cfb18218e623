"""A small trace of each format that is text or lengths under other names, what is in it, and how to look at it."""

import base64
import json
from collections.abc import Iterable
from typing import Any

import kv_sim_front_ends
import kv_sim_kept_chats
import kv_sim_served_traces
from kv_sim_records import lines

from kv_sim.replay.trace import TraceRequest


def lengths(requests: Iterable[TraceRequest]) -> list[tuple[float, int, int]]:
    """When each request arrives, and the tokens of its prompt and of its answer."""
    return [(one.arrival_seconds, one.input_tokens, one.output_tokens) for one in requests]


def shared(one: TraceRequest, other: TraceRequest) -> int:
    """How many blocks two prompts begin with."""
    same = [a == b for a, b in zip(one.blocks, other.blocks, strict=False)]
    return same.index(False) if False in same else len(same)


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def otlp(*spans: dict[str, Any]) -> dict[str, Any]:
    return {"resourceSpans": [{"resource": {}, "scopeSpans": [{"scope": {}, "spans": [*spans]}]}]}


def span(seconds: float, named: dict[str, Any], **more: Any) -> dict[str, Any]:
    kinds = {str: "stringValue", int: "intValue"}
    attributes = [{"key": name, "value": {kinds[type(value)]: value}} for name, value in named.items()]
    start = 1_790_000_000_000_000_000 + int(seconds * 1e9)
    return {"traceId": "t", "name": "chat m", "startTimeUnixNano": str(start), "attributes": attributes, **more}


def captured(second: int, sent: Any, came: Any, encoding: str = "JSON") -> dict[str, Any]:
    """A line of SageMaker's."""
    entries = {}
    for name, value in (("endpointInput", sent), ("endpointOutput", came)):
        text = value if isinstance(value, str) else json.dumps(value)
        data = text if encoding == "JSON" else base64.b64encode(text.encode()).decode()
        entries[name] = {"observedContentType": "application/json", "data": data, "encoding": encoding}
    time = {"eventId": f"e{second}", "inferenceTime": f"2026-01-31T10:00:0{second}Z"}
    return {"captureData": entries, "eventMetadata": time, "eventVersion": "0"}


def transcribed(
    uuid: str, above: str | None, kind: str, second: float, message: dict[str, Any], **more: Any
) -> dict[str, Any]:
    """A line of Claude Code's."""
    time = f"2026-01-31T10:00:{second:06.3f}Z"
    names = {"uuid": uuid, "parentUuid": above, "sessionId": "s", "isSidechain": False}
    return {"type": kind, **names, "timestamp": time, "message": {"role": kind, **message}, **more}


def rolled(second: float, kind: str, **payload: Any) -> dict[str, Any]:
    """A line of Codex's."""
    return {"timestamp": f"2026-01-31T10:00:{second:06.3f}Z", "type": kind, "payload": payload}


SAID = "x" * 107
"""Behind its role and before who answers it has 128 characters: 32 tokens, two blocks of 16."""
ASKED = {"model": "m", "messages": [user(SAID)]}
MORE = {"model": "m", "messages": [user(SAID), user("y" * 43)]}
"""128 - 13 + 8 + 43 + 13 characters: 45 tokens, of which one block is that of `ASKED`."""


def _observed(second: int, asked: Any, **more: Any) -> dict[str, Any]:
    return {"startTime": f"2026-01-31T10:00:0{second}.5Z", "input": asked, **more}


def event(name: str, second: int, asked: Any, **told: Any) -> dict[str, Any]:
    """A line of SGLang's log."""
    out = {"out": {"text": "y", "meta_info": {"prompt_tokens": 99, **told}}} if told else {}
    return {
        "timestamp": f"2026-01-31T10:00:0{second}",
        "event": f"request.{name}",
        "rid": "a",
        "obj": asked,
        **out,
    }


def _entry(second: int, asked: Any, answered: Any) -> dict[str, Any]:
    """What HAR has of a request."""
    sent = {"method": "POST", "url": "/v1/chat/completions", "postData": {"text": json.dumps(asked)}}
    content = {"status": 200, "content": {"text": json.dumps(answered)}}
    return {"startedDateTime": f"2026-01-31T10:00:0{second}.000Z", "request": sent, "response": content}


_GENERATION = {"traceId": "t", "type": "GENERATION", "model": "m", "usageDetails": {"input": 9, "output": 7}}
_RUN = {"run_type": "llm", "completion_tokens": 7, "session_id": "a project"}
_INVOKED = {"schemaType": "ModelInvocationLog", "schemaVersion": "1.0", "operation": "Converse", "modelId": "m"}
_HASHED = {"prompt": SAID, "output_tokens": 7, "provided_session_id": "a", "block_size": 16, "model_name": "m"}
_SENT = {"output_tokens": 7, "prompt_tokens": 99}

CASES: dict[str, tuple[str, int, list[float]]] = {
    "aibrix": (
        lines(
            {"timestamp": 500, "requests": [{"prompt": SAID, "prompt_length": 9, "output_length": 7}]},
            {"timestamp": 1500, "requests": []},
            {"timestamp": 3500, "requests": [{"prompt": SAID, "output_length": None, "session_id": None}]},
        ),
        16,
        [0, 3],
    ),
    "aiperf": (
        lines(
            {"timestamp": 500, "text_input": SAID, "output_length": 7},
            {"timestamp": 3500, "payload": {"messages": MORE["messages"]}},
        ),
        16,
        [0, 3],
    ),
    "aiperf-turns": (
        lines(
            {
                "session_id": "a",
                "turns": [{"text": SAID, "output_length": 7}, {"text": "y" * 43, "delay": 3000}],
            }
        ),
        16,
        [0, 3],
    ),
    "aiperf-inputs": (
        json.dumps({"data": [{"session_id": "a", "payloads": [ASKED, MORE]}]}, indent=1),
        16,
        [0, 60],
    ),
    "otel": (
        lines(
            otlp(
                span(
                    3,
                    {"gen_ai.operation.name": "chat", "gen_ai.input.messages": json.dumps(MORE["messages"])},
                    spanId="b",
                ),
                span(0, {"gen_ai.operation.name": "invoke_agent", "gen_ai.usage.input_tokens": 500}, spanId="a"),
                span(
                    0,
                    {
                        "gen_ai.operation.name": "chat",
                        "gen_ai.input.messages": json.dumps(
                            [{"role": "user", "parts": [{"type": "text", "content": SAID}]}]
                        ),
                        "gen_ai.usage.output_tokens": 7,
                    },
                    spanId="c",
                    parentSpanId="a",
                ),
                span(0.001, {"gen_ai.usage.prompt_tokens": 32}, spanId="d", parentSpanId="c"),
            )
        ),
        16,
        [0, 3],
    ),
    "guidellm": (
        json.dumps(
            {
                "benchmarks": [
                    {
                        "requests": {
                            "successful": [
                                {**_SENT, "request_start_time": 8.5, "request_args": json.dumps({"body": MORE})},
                                {**_SENT, "request_start_time": 5.5, "request_args": json.dumps({"body": ASKED})},
                            ],
                            "incomplete": [{"request_start_time": None}],
                            "errored": [],
                        }
                    }
                ]
            }
        ),
        16,
        [0, 3],
    ),
    "langfuse": (
        lines(
            {**_observed(1, {"any": "thing"}), **_GENERATION, "type": "SPAN"},
            {**_GENERATION, **_observed(1, ASKED["messages"]), "createdAt": "2026-01-31T10:09:00Z"},
            {**_GENERATION, **_observed(4, json.dumps(MORE))},
        ),
        16,
        [0, 3],
    ),
    "langsmith": (
        lines(
            {**_RUN, "run_type": "chain", "start_time": "2026-01-31T10:00:01", "inputs": {"any": "thing"}},
            {**_RUN, "start_time": "2026-01-31T10:00:01.250", "inputs": ASKED},
            {
                **_RUN,
                "start_time": "2026-01-31T10:00:04.250",
                "inputs": {
                    "messages": [
                        [
                            {"lc": 1, "id": ["langchain", "schema", "HumanMessage"], "kwargs": {"content": said}}
                            for said in (SAID, "y" * 43)
                        ]
                    ]
                },
            },
        ),
        16,
        [0, 3],
    ),
    "claude-code": (
        lines(
            {"type": "summary", "summary": "what it was about", "leafUuid": "z"},
            transcribed("a", None, "user", 1, {"content": SAID}),
            transcribed("b", "a", "assistant", 2, {"id": "1", "usage": {"output_tokens": 7}, "content": "z" * 27}),
            transcribed("c", "b", "user", 4, {"content": "y" * 43}),
            transcribed("d", "c", "assistant", 5, {"id": "2", "content": "z" * 15}),
        ),
        16,
        [0, 3],
    ),
    "codex": (
        lines(
            rolled(0, "session_meta", id="s"),
            rolled(1, "response_item", type="message", role="user", content=SAID),
            rolled(2, "response_item", type="message", role="assistant", content="z" * 27),
            rolled(3, "event_msg", type="token_count", info={"last_token_usage": {"output_tokens": 7}}),
            rolled(4, "response_item", type="message", role="user", content="y" * 43),
            rolled(5, "response_item", type="message", role="assistant", content="z" * 15),
        ),
        16,
        [0, 3],
    ),
    "sglang": (
        lines(
            {"input_ids": [*range(40)], "sampling_params": {}, "timestamp": 1},
            {"input_ids": [*range(35)], "sampling_params": {}, "timestamp": 4, "output_tokens": 7},
        ),
        16,
        [0, 3],
    ),
    "sglang-log": (
        lines(
            event("received", 1, {"text": None, "input_ids": [*range(40)]}),
            event("finished", 9, {"text": "x", "input_ids": [*range(35)]}, e2e_latency=5, completion_tokens=7),
            event("finished", 9, {"text": None, "input_ids": [*range(40)]}, e2e_latency=8.0),
        ),
        16,
        [0, 3],
    ),
    "har": (
        json.dumps(
            {
                "log": {
                    "version": "1.2",
                    "entries": [
                        _entry(4, MORE, {"usage": {"completion_tokens": 7}}),
                        _entry(1, ASKED, {}),
                        {"startedDateTime": "2026-01-31T10:00:02Z", "request": {"method": "GET"}, "response": {}},
                    ],
                }
            },
            indent=1,
        ),
        16,
        [0, 3],
    ),
    "sagemaker": (
        lines(captured(1, ASKED, {"usage": {"completion_tokens": 7}}), captured(4, MORE, {}, "BASE64")),
        16,
        [0, 3],
    ),
    "bedrock": (
        lines(
            *(
                {
                    **{**_INVOKED, "timestamp": f"2026-01-31T10:00:0{second}Z"},
                    "input": {
                        "inputBodyJson": {"messages": [{"role": "user", "content": parts}]},
                        "inputTokenCount": 9,
                    },
                    "output": {"outputTokenCount": 7},
                }
                for second, parts in ((1, [{"text": SAID}]), (4, [{"text": SAID}, {"text": "y" * 51}]))
            )
        ),
        16,
        [0, 3],
    ),
    "baseten": (
        lines(
            {**_HASHED, "timestamp_start_unix_ms": 500, "input_tokens": 40, "total_hashes": [5, 6, 7]},
            {**_HASHED, "timestamp_start_unix_ms": 3500, "input_tokens": 35, "total_hashes": [5, 6, 8]},
        ),
        16,
        [0, 3],
    ),
    "baseten-text": (
        "timestamp_start_unix_ms,prompt,input_tokens,output_tokens,provided_session_id,total_hashes\n"
        f"500,{'x' * 128},9,7,,[]\n3500,{'x' * 64 + 'y' * 116},9,7,,[]\n",
        16,
        [0, 3],
    ),
    "openai-table": (
        "request_created_at,request_body,model,prompt_tokens,completion_tokens\n"
        + "".join(
            f'"2026-01-31T10:00:0{second}.5Z","{body}","m","9","{tokens}"\n'
            for second, body, tokens in (
                (1, json.dumps(ASKED).replace('"', '""'), 7),
                (4, json.dumps(MORE).replace('"', '""').replace('"', '""'), " "),
            )
        ),
        16,
        [0, 3],
    ),
    "servegen": (
        lines(
            {"request_id": 0, "type": "text", "input_length": 40, "hash_ids": [5, 6, 7]},
            {"request_id": 1, "type": "text", "input_length": 48, "hash_ids": [5, 6, 8]},
        ),
        16,
        [0, 1],
    ),
    "bench": (
        json.dumps({"model_id": "m", "input_lens": [64, 128], "output_lens": [0, 7], "start_times": [8.5, 5.5]}),
        64,
        [0, 3],
    ),
    "mooncake-lengths": (
        lines(
            {"timestamp": 500, "input_length": 128, "output_length": 7},
            {"timestamp": 3500, "input_length": 64, "output_length": 7, "hash_ids": None},
        ),
        64,
        [0, 3],
    ),
    "litellm": (
        "request_id,call_type,prompt_tokens,completion_tokens,startTime,model,messages\n"
        "a,acompletion,128,7,2026-01-31 10:00:01.5,m,{}\nb,acompletion,64,7,2026-01-31 10:00:04.5,m,{}\n",
        64,
        [0, 3],
    ),
    "splitwise": (
        "request_id,request_type,application_id,arrival_timestamp,batch_size,prompt_size,token_size\n"
        "0,2,0,0.5,1,128,7\n1,2,0,3.5,1,64,7\n",
        64,
        [0, 3],
    ),
    **kv_sim_served_traces.CASES,
    **kv_sim_kept_chats.CASES,
    **kv_sim_front_ends.CASES,
}
"""The text of a file, the tokens of its blocks, when its requests arrive."""

READ: dict[str, tuple[list[tuple[int, int]], int]] = {
    "aibrix": ([(32, 7), (32, 0)], 2),
    "aiperf": ([(32, 7), (45, 0)], 1),
    # The second has 32 tokens, 7 of the answer, and 8 + 43 + 13 characters.
    "aiperf-turns": ([(32, 7), (55, 0)], 2),
    "aiperf-inputs": ([(32, 0), (45, 0)], 1),
    "otel": ([(32, 7), (45, 0)], 1),
    "guidellm": ([(32, 7), (45, 7)], 1),
    "langfuse": ([(32, 7), (45, 7)], 1),
    "langsmith": ([(32, 7), (45, 7)], 1),
    # The second has 128 characters, 27 of the answer, and 8 + 43 + 13; its answer is 13 + 15.
    "claude-code": ([(32, 7), (55, 7)], 2),
    "codex": ([(32, 7), (55, 7)], 2),
    "sglang": ([(40, 0), (35, 7)], 2),
    "sglang-log": ([(40, 0), (35, 7)], 2),
    "har": ([(32, 0), (45, 7)], 1),
    "sagemaker": ([(32, 7), (45, 0)], 1),
    "bedrock": ([(32, 7), (45, 7)], 1),
    "baseten": ([(40, 7), (35, 7)], 2),
    "baseten-text": ([(32, 7), (45, 7)], 1),
    "openai-table": ([(32, 7), (45, 0)], 1),
    "servegen": ([(40, 0), (48, 0)], 2),
    "bench": ([(128, 7), (64, 0)], 1),
    "mooncake-lengths": ([(128, 7), (64, 7)], 1),
    "litellm": ([(128, 7), (64, 7)], 1),
    "splitwise": ([(128, 7), (64, 7)], 1),
    **kv_sim_served_traces.READ,
    **kv_sim_kept_chats.READ,
    **kv_sim_front_ends.READ,
}
"""Tokens in and out, and how many blocks the second request has of the first one's."""

LENGTHS = ("bench", "mooncake-lengths", "litellm", "splitwise")
"""Those without prompts and without ids."""
