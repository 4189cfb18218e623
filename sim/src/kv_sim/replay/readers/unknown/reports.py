"""``report_of``: what a known file is that has no readable requests, and what to use instead."""

from collections.abc import Mapping
from typing import Any, Final

from kv_sim.replay.readers.json_values import json_in

_SUMS: Final = "the sums of several requests; a log with a record for each request can be read"
_MESSAGE: Final = (
    "a single message; a record must be a whole conversation: jq -c '{messages: .}' makes one from a list of "
    "messages, jq -sc '{messages: .}' from lines"
)
_ANSWERS: Final = "the answers of a batch; the requests are in the file from which the batch was made"
_REPORTS: Final = (
    *(((name,), _SUMS) for name in ("api_requests", "num_model_requests", "n_requests")),
    (
        ("total_input_tokens", "request_throughput"),
        "the summary of a benchmark; each request is in what vllm bench serve saves with --save-detailed, "
        "SGLang's bench_serving with --output-details",
    ),
    *(((name,), _SUMS) for name in ("usage_date_utc", "usage_input_tokens_no_cache")),
    (("data", "has_more", "next_page"), _SUMS),
    *(
        (
            names,
            "the summary of a benchmark; what aiperf sent is in its inputs.json, and each request in its "
            "profile_export.jsonl",
        )
        for names in (("Metric", "avg"), ("aiperf_version", "request_count"))
    ),
    *(
        (
            names,
            "the events of a KV cache, without the requests; TraceConnector records these",
        )
        for names in (
            ("block_hashes", "parent_block_hash"),
            ("ts", "events"),
            ("event.event_id", "event.data"),
            ("event.worker_id", "event.event"),
        )
    ),
    (
        ("source", "action", "args"),
        "an event of OpenHands, without the requests to its models; with log_completions it saves these",
    ),
    (
        ("load_summary", "successes"),
        "the summary of a benchmark; each request is in inference-perf's per_request_lifecycle_metrics.json",
    ),
    (
        ("metadata.request_start_ns", "metrics"),
        "aiperf's measurements of a request; the requests are in its inputs.json, or read lengths with --columns "
        "time=metadata.request_start_ns,input=metrics.input_sequence_length.value,"
        "output=metrics.output_sequence_length.value",
    ),
    (
        ("prefix_tokens", "newly_append_tokens", "timing_events"),
        "a trace of TraceLab, without block ids; kv-cache-tester's format (weka) has them",
    ),
    (("custom_id", "response"), _ANSWERS),
    (("custom_id", "result"), _ANSWERS),
    (
        ("service_kind", "experiments"),
        "genai-perf's measurements of its requests; the requests are in its inputs.json",
    ),
    (
        ("category", "operationName", "properties"),
        "Azure's diagnostic log, without prompts and tokens; a gateway in front of it can log both, such as API "
        "Management with its log of language models",
    ),
    (
        ("message_tree_id",),
        "a message tree of OpenAssistant; make a conversation of each path through its replies: "
        '{"conversations": [{"from": "human", "value": …}, {"from": "gpt", "value": …}]}',
    ),
    (
        ("requesterUsername", "requests"),
        "a chat exported by VS Code, without most of the prompts: files, tools and their results are missing",
    ),
    (
        ("sessionID", "role", "time"),
        "a message stored by opencode, without its text; opencode export writes the whole session",
    ),
    (
        ("hrTime", "attributes", "_body"),
        "a telemetry log of Gemini CLI or another program, which has other events, too; Gemini CLI saves its "
        "requests in ~/.gemini/tmp",
    ),
    (
        ("ts", "type", "text"),
        "the messages that Cline shows; its requests are in api_conversation_history.json beside this file",
    ),
    (
        ("event", "properties", "user_id"),
        "an analytics log with several kinds of events, such as Aider's; "
        "jq -c 'select(.event == \"message_send\")' takes out the requests",
    ),
    (
        ("completion_id", "sequence", "role"),
        "a message of New Relic's, of which a request has several; "
        "jq -sc 'group_by(.completion_id)[] | sort_by(.sequence) | {timestamp: .[0].timestamp, "
        "messages: map(select(.is_response | not))}' gathers those of lines",
    ),
    (
        ("CorrelationId", "SequenceNumber", "RequestMessages"),
        "API Management's log of language models, in which a long request is several rows: join RequestMessages "
        "of a CorrelationId by SequenceNumber; rows that are whole are read with --columns time=TimeGenerated,"
        "prompt=RequestMessages,input=PromptTokens,output=CompletionTokens,model=ModelName",
    ),
    (
        ("conversations.responses",),
        "an export of Grok; jq -c '.conversations[] | {messages: [.responses[].response | {role: .sender, "
        "content: .message, timestamp: .create_time}]}' takes out its chats",
    ),
    *((names, _MESSAGE) for names in (("role", "content"), ("type", "data.type", "data.content"))),
    (
        ("eval", "samples", "stats"),
        "Inspect's log of an evaluation; its samples are conversations: jq -c '.samples[] | {messages}' takes "
        "them out",
    ),
    (("evalId", "results"), "a report of promptfoo's; jq -c '.results.results[]' takes out its requests"),
    *(
        (
            ("promptIdx", counts),
            "a request of promptfoo's; --columns "
            f"prompt=prompt.raw,input={counts}.prompt,output={counts}.completion reads it",
        )
        for counts in ("tokenUsage", "response.tokenUsage")
    ),
    (
        ("doc_id", "arguments.gen_args_0"),
        "a sample of lm-eval's; --columns prompt=arguments.gen_args_0.arg_0 reads what was asked first",
    ),
    (("benchmarks:",), "GuideLLM's report in YAML; its report in JSON, benchmarks.json, can be read"),
    (("parts", "kind", "run_id"), "a message of Pydantic AI; its spans have whole requests, and can be read"),
    (
        ("task", "task_images"),
        "the memory of a smolagents agent; its spans have the requests, and can be read",
    ),
    (("run_id", "run_data"), f"a run of an Agno agent: {_SUMS}"),
    (
        ("object", "model", "choices"),
        "the answers of an API; the requests are needed, in the same file or instead of it",
    ),
)
"""Fields of known files without readable requests; what such a file is, and what to use instead."""


def report_of(record: Mapping[str, Any]) -> str | None:
    """What a file is, by its first record; None: it is no known one of these."""
    return next((said for names, said in _REPORTS if all(_is_there(record, name) for name in names)), None)


def _is_there(record: Mapping[str, Any], name: str) -> bool:
    """Whether it has a field, or ``outer.inner`` in an object, or in the first of a list."""
    outer, dot, inner = name.partition(".")
    found = json_in(record.get(outer))
    found = found[0] if isinstance(found, list) and found else found
    return outer in record and (not dot or (isinstance(found, dict) and inner in found))
