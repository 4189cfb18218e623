"""What may be meant by a file that says too little: a whole conversation, a list in a record, a message."""

import json

import pytest
from kv_sim_foreign_traces import ASKED, SAID, lengths, user

from kv_api import ConfigError
from kv_sim.replay.readers.opening import open_trace
from kv_sim.replay.readers.options import TraceOptions
from kv_sim.replay.readers.requests.sharing import parse_sharing
from kv_sim.replay.readers.unknown.likely_columns import likely_columns
from kv_sim.replay.readers.unknown.own_columns import parse_columns


def answer(text):
    return {"role": "assistant", "content": text}


TALK = [user(SAID), answer("a"), user(SAID), answer("b")]
WITHIN = "prompts have 3 answers within: if each is a whole conversation, use --format conversations"


def test_messages_that_may_be_a_whole_conversation_are_said(read):
    records = [{"id": "i", "messages": [*TALK[:2], user("c")]}, {"id": "j", "messages": TALK}]
    requests, notes = read(*records)
    assert len(requests) == 2 and WITHIN in notes
    requests, notes = read(*records, format="conversations")
    assert len(requests) == 3 and WITHIN not in notes


MESSAGES = [{"role": "user", "content": "what did you say then"}]
ANSWER = {"role": "assistant", "content": "nothing"}


@pytest.mark.parametrize(
    "more",
    [
        *({"timestamp": 5}, {"max_tokens": 5}, {"temperature": 0.5}, {"stream": True}, {"response": {"id": "r"}}),
        *({"completion_tokens": 5}, {"usage": {"completion_tokens": 5}}),
    ],
)
def test_what_says_that_it_is_a_request_is_one(read, more):
    _, notes = read({"messages": [*TALK, user("c")], **more})
    assert notes[0] == "format: openai" and not any("within" in note for note in notes)


def test_a_request_in_a_record_is_one(read):
    _, notes = read({"custom_id": "a", "body": {"messages": [*TALK, user("c")]}})
    assert not any("within" in note for note in notes)


@pytest.mark.parametrize("last", [user("done"), {"role": "exit", "content": "done"}, *TALK[-1:]])
def test_what_mini_swe_agent_writes_is_a_conversation(read, last):
    messages = [*TALK, last] if last is not TALK[-1] else TALK
    requests, notes = read({"info": {}, "messages": messages, "trajectory_format": "mini-swe-agent-1"})
    assert notes[0] == "format: conversations"
    assert lengths(requests) == [(0, 32, 1), (60, 65, 1)]


@pytest.mark.parametrize(
    ("record", "hint"),
    [
        (
            {"a": {"isl": 9, "osl": 2}, "b": {"isl": 8, "osl": 3}},
            "(each of its fields is a readable record: jq -c '.[]' takes them out)",
        ),
        (
            {"date": "2026-01-31", "prompt_tokens": 9, "api_requests": 5},
            "this is the sums of several requests; a log",
        ),
        (
            {"input_tokens": 9, "num_model_requests": 5},
            "this is the sums of several requests; a log with a record",
        ),
        (
            user(SAID),
            "this is a single message; a record must be a whole conversation: jq -c '{messages: .}' makes one",
        ),
        (
            {
                "time": "2026-01-31T10:00:00Z",
                "category": "RequestResponse",
                "operationName": "a",
                "properties": "{}",
            },
            "this is Azure's diagnostic log, without prompts and tokens; a gateway in front of it can log both",
        ),
        ({"service_kind": "openai", "experiments": []}, "the requests are in its inputs.json"),
        (
            {"message_tree_id": "a", "prompt": {"text": "b", "role": "prompter", "replies": []}},
            "this is a message tree of OpenAssistant; make a conversation of each path through its replies",
        ),
        (
            {"message_id": "a", "text": "b", "role": "prompter", "message_tree_id": "a"},
            "this is a message tree of OpenAssistant; make a conversation of each path through its replies",
        ),
        (
            {"requesterUsername": "a", "requests": [{"message": {"text": "b"}}]},
            "this is a chat exported by VS Code, without most of the prompts",
        ),
        (
            {"id": "a", "sessionID": "s", "role": "user", "time": {"created": 1}},
            "this is a message stored by opencode, without its text; opencode export writes the whole",
        ),
        (
            {"ts": 5, "type": "say", "say": "text", "text": "do it"},
            "this is the messages that Cline shows; its requests are in api_conversation_history.json beside this",
        ),
        (
            {"event": "launched", "properties": {}, "user_id": "a", "time": 5},
            "jq -c 'select(.event == \"message_send\")' takes out the requests",
        ),
        ({"TimeGenerated": "2026-01-31", "PromptTokens": 9}, "--columns time=TimeGenerated,input=PromptTokens"),
        (
            {"requests": [{"custom_id": "a", "params": ASKED}]},
            "(requests is a list of readable records: jq -c '.requests[]' takes them out)",
        ),
        (
            {"count": 1, "conversations": [{"id": "a", "messages": [*MESSAGES, ANSWER]}]},
            "(conversations is a list of readable records: jq -c '.conversations[]' takes them out)",
        ),
        (
            {"page": 1, "@items": [{"isl": 9}]},
            """(@items is a list of readable records: jq -c '."@items"[]' takes them out)""",
        ),
        (
            {"page": 1, "items": [{"isl": 9}]},
            "(items is a list of readable records: jq -c '.items[]' takes them out)",
        ),
    ],
)
def test_what_has_to_be_taken_out_is_said(read, record, hint):
    with pytest.raises(ConfigError) as error:
        read(record)
    assert hint in str(error.value)


@pytest.mark.parametrize("items", [[], [5], [{"a": "b"}], {"a": 1}, None])
def test_a_list_of_anything_else_is_not_told(read, items):
    with pytest.raises(ConfigError) as error:
        read({"page": 1, "items": items})
    assert "takes them out" not in str(error.value)


def test_the_length_of_a_prompt_is_nothing_that_was_asked(read):
    with pytest.raises(ConfigError) as error:
        read({"arrived": 5, "counts": {"prompt": 32, "completion": 3}})
    assert "has the fields arrived, counts; expected" in str(error.value)


def test_a_line_to_paste_goes_before_a_list(read):
    with pytest.raises(ConfigError, match="--columns conversation=history") as error:
        read({"trajectory": [ASKED], "history": TALK})
    assert "takes them out" not in str(error.value)


@pytest.mark.parametrize(
    ("record", "line"),
    [
        (
            {"started_at": 5, "ai": {"proxy": {"usage": {"prompt_tokens": 9, "completion_tokens": 2}}}},
            "time=started_at,input=ai.proxy.usage.prompt_tokens,output=ai.proxy.usage.completion_tokens",
        ),
        (
            {
                "start_time": 5,
                "genai_tokens_input": "9",
                "genai_tokens_output": "2",
                "genai_tokens_cached": "4",
            },
            "time=start_time,input=genai_tokens_input,cached=genai_tokens_cached,output=genai_tokens_output",
        ),
        (
            {"event": "x", "timestamp": 5, "properties": {"$ai_input_tokens": 9, "$ai_output_tokens": 2}},
            "time=timestamp,input=properties.$ai_input_tokens,output=properties.$ai_output_tokens",
        ),
        (
            {"launch_time": 5.5, "prompt_tokens": 9, "generation_tokens": 2, "created": {"time": 7}},
            "time=launch_time,input=prompt_tokens,output=generation_tokens",
        ),
        (
            {"number_input_tokens": 9, "number_output_tokens": 2},
            "input=number_input_tokens,output=number_output_tokens",
        ),
        ({"promptTokens": 9, "completionTokens": 2}, "input=promptTokens,output=completionTokens"),
        ({"isl": "many", "inner": {"isl": 9}}, "input=inner.isl"),
        ({"a": {"isl": 8}, "isl": 9, "arrived": 5}, "time=arrived,input=isl"),
        ({"a": {"isl": 8}}, "input=a.isl"),
        ({"a": {"isl": 8}, "b": {"osl": 9}}, "input=a.isl,output=b.osl"),
        ({"tokens_prompt": 9, "tokens_completion": 2}, "input=tokens_prompt,output=tokens_completion"),
        ({"a": {"b": {"c": {"d": {"isl": 9}}}}}, "input=a.b.c.d.isl"),
        (
            {"input_toks": 9, "output_toks": 2, "arrival_time_ns": 5, "model": "m"},
            "time=arrival_time_ns,input=input_toks,output=output_toks,model=model",
        ),
        (
            {"input_toks": 3, "output_toks": 2, "input_tok_ids": [7, 8, 9]},
            "prompt=input_tok_ids,input=input_toks,output=output_toks",
        ),
        (
            {"ts": 5, "num_input_tokens": 3, "input_tokens": [7, 8, 9], "output_tokens": [1], "usage": {}},
            "time=ts,prompt=input_tokens,input=num_input_tokens",
        ),
        ({"prompt_tokens": [7, 8, 9], "text": "how it was said"}, "prompt=prompt_tokens"),
        (
            {"prompt": {"raw": "Hello!"}, "response": {"tokenUsage": {"prompt": 5}}, "prompt_tokens": 5},
            "input=prompt_tokens",
        ),
        ({"gmt_create": "2026-01-31 10:00:00", "prompt_tokens": 9}, "time=gmt_create,input=prompt_tokens"),
        ({"messages": MESSAGES, "prompt_tokens": 9}, "prompt=messages,input=prompt_tokens"),
        ({"messages": json.dumps(MESSAGES), "completion_tokens": 9}, "prompt=messages,output=completion_tokens"),
        ({"messages": str([*MESSAGES, ANSWER]), "prompt_tokens": 9}, "conversation=messages"),
        (
            {"tokens_prompt": 9, "tokens_completion": 2, "tokens_cached": 8},
            "input=tokens_prompt,cached=tokens_cached,output=tokens_completion",
        ),
        (
            {"usage": {"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 0}}},
            "input=usage.prompt_tokens,cached=usage.prompt_tokens_details.cached_tokens",
        ),
        (
            {"input_tokens": 4, "cache_read_input_tokens": 9},
            "input=input_tokens+cache_read_input_tokens,cached=cache_read_input_tokens",
        ),
        (
            {"messages": MESSAGES, "prompt_tokens": 9, "num_cached_tokens": 9},
            "prompt=messages,input=prompt_tokens,cached=num_cached_tokens",
        ),
        ({"prompt_tokens": 4, "cached_tokens": 9}, "input=prompt_tokens"),
        ({"messages": MESSAGES, "cached_tokens": 9}, "prompt=messages"),
    ],
)
def test_columns_are_looked_for_in_objects(record, line):
    assert likely_columns(record) == line


@pytest.mark.parametrize(
    "record",
    [
        {"a": {"isl": 9, "osl": 2}, "b": {"isl": 8, "osl": 3}},
        {"body": {"input": ["what is embedded, as it is", "one"]}, "url": "/v1/embeddings"},
        {"a": {"b": {"c": {"d": {"e": {"isl": 9}}}}}},
        {"a,b": {"isl": 9}, "a+b": {"isl": 9}, "": {"isl": 9}},
        json.loads('{"inner": {"question": "what did you say then"}}'),
    ],
)
def test_columns_that_can_not_be_told_are_not(record):
    assert likely_columns(record) is None


# -- units ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("header", "end"),
    [
        ("timestamp,input_length,output_length,hash_ids", ",ids=hash_ids --time-unit ms"),
        ("arrived_at,input_length,output_tokens,hash_ids", ",ids=hash_ids --time-unit ms"),
        ("timestamp,input_length,output_tokens,other", ",output=output_tokens"),
        ("chat_id,parent_chat_id,timestamp,input_length,hash_ids", ",session=chat_id"),
    ],
)
def test_a_table_of_another_format_s_fields_has_its_unit(tmp_path, header, end):
    file = tmp_path / "trace.csv"
    cells = ["[1]" if name == "hash_ids" else "7" for name in header.split(",")]
    file.write_text(f"{header}\n{','.join(cells)}\n")
    with pytest.raises(ConfigError) as error:
        open_trace(file)
    assert str(error.value).endswith(end)


@pytest.mark.parametrize(
    ("name", "seconds"),
    [
        *(("arrival_ms", 1e-3), ("ms", 1e-3), ("startMs", 1e-3), ("unix_millis", 1e-3), ("timeMillis", 1e-3)),
        *(
            ("ts_us", 1e-6),
            ("at_micros", 1e-6),
            ("atMicros", 1e-6),
            ("startTimeUnixNano", 1e-9),
            ("start_ns", 1e-9),
            ("a.nanos", 1e-9),
        ),
        *(("MS", 1e-3), ("ARRIVAL_MS", 1e-3), ("Arrival (ms)", 1e-3), ("Arrival [us]", 1e-6), ("Start Ns", 1e-9)),
        *(("items", 1), ("status", 1), ("columns", 1), ("time", 1), ("TERMS", 1), ("arrivalms", 1)),
    ],
)
def test_a_column_s_name_may_end_with_its_unit(read, name, seconds):
    records = ({name: time, "isl": 9} for time in (0, 3_000_000))
    columns = {"time": name, "input": "isl"}
    requests, notes = read(*records, columns=columns, sharing=parse_sharing("none"))
    assert [one.arrival_seconds for one in requests] == [0, pytest.approx(3_000_000 * seconds)]
    said = [note for note in notes if note.startswith("times count")]
    unit = {1e-3: "ms", 1e-6: "us", 1e-9: "ns"}.get(seconds)
    assert said == ([] if unit is None else [f"times count {unit}, as {name} is called (--time-unit)"])


def test_what_else_tells_a_unit_goes_before_a_column_s_name(read):
    asked = {"columns": {"time": "start_ms", "input": "isl"}, "sharing": parse_sharing("none")}
    for times, more, said in (
        ((0, 3), {"time_unit": "s"}, []),
        ((1_790_000_000, 1_790_000_003), {}, ["times look like s since 1970 (--time-unit)"]),
        (("2026-01-31T10:00:00Z", "2026-01-31T10:00:03Z"), {}, []),
    ):
        requests, notes = read(*({"start_ms": time, "isl": 9} for time in times), **asked, **more)
        assert [one.arrival_seconds for one in requests] == [0, 3]
        assert [note for note in notes if note.startswith("times")] == said


def test_a_chat_may_have_a_time_in_a_database(read):
    spoken = [{"role": "user", "content": "x" * 107}, {"role": "assistant", "content": "z" * 28}]
    dated = [{**one, "createdAt": f"2026-01-31T10:00:0{second}Z"} for second, one in enumerate(spoken)]
    for messages in (spoken, dated):
        (one,), notes = read({"id": "c", "createdAt": "2026-01-31T09:00:00Z", "messages": messages})
        assert (notes[0], one.input_tokens, one.output_tokens) == ("format: conversations-dated", 32, 7)
    (one,), notes = read({"id": "c", "created_at": 5, "messages": dated})
    assert notes[0] == "format: openai", "as a log has it"
    requests, notes = read(*({"createdAt": time, "messages": spoken[:1]} for time in (5, 7)))
    assert (notes[0], [one.arrival_seconds for one in requests]) == ("format: openai", [0, 2])


def test_the_first_line_of_http_is_no_prompt():
    """As APISIX and NGINX log it, of which only the first has lengths."""
    line = {"time": "2026-01-31T10:00:00+00:00", "request": "POST /v1/chat/completions HTTP/1.1", "status": "200"}
    assert likely_columns(line) is None
    told = {**line, "llm_model": "m", "llm_prompt_tokens": "100", "llm_completion_tokens": "14"}
    columns = "time=time,input=llm_prompt_tokens,output=llm_completion_tokens,model=llm_model"
    assert likely_columns(told) == columns


@pytest.mark.parametrize("level", ["level", "levelname", "severity", "logLevel"])
def test_what_a_program_says_of_itself_is_no_prompt(level):
    line = {"ts": "2026-01-31T10:00:00Z", "message": "POST /v1/chat 200 900 ms", "request": "Model: m, Body: x"}
    assert likely_columns(line) == "time=ts,prompt=request"
    assert likely_columns({**line, level: "INFO"}) is None
    assert likely_columns({**line, level: "INFO", "prompt": "What is it?"}) == "time=ts,prompt=prompt"


@pytest.mark.parametrize(
    ("wrap", "way"),
    [
        (
            lambda one: {"took": 1, "hits": {"total": 2, "hits": [{"_source": one}]}},
            ".hits | .hits | .[] | ._source",
        ),
        (
            lambda one: {"events": [{"message": json.dumps(one)}], "next": []},
            ".events | .[] | .message | fromjson",
        ),
        (
            lambda one: {"data": {"a-b": [["5", json.dumps(one)], ["6", "{"]]}},
            '.data | ."a-b" | .[] | .[1] | fromjson',
        ),
        (lambda one: {"a": {"b": json.dumps({"c": json.dumps(one)})}}, ".a | .b | fromjson | .c | fromjson"),
        (lambda one: {"a": {"b": {"messages": ["as LangChain has them"]}}}, None),
        (lambda one: {"a": {"b": [5, None, []]}}, None),
        (lambda one: {"a": [[[[[[[[one]]]]]]]]}, None),
    ],
)
def test_what_is_wrapped_up_is_found(read, wrap, way):
    """As Elasticsearch, CloudWatch and Loki give out a log."""
    with pytest.raises(ConfigError) as refused:
        read(wrap({"timestamp": 5, "request": {"messages": [user("a" * 40)]}}))
    hint = f" (readable records are further in: jq -c '{way}' takes them out); "
    assert (hint in str(refused.value)) is (way is not None)
    assert ("further in" in str(refused.value)) is (way is not None)


def test_what_an_api_was_asked_goes_before_lengths(tmp_path):
    """As Kong logs it, further in than a name tells."""
    counts = {"prompt_tokens": 32, "completion_tokens": 3}
    log = {
        "started_at": 1_769_853_600_000,
        "ai": {"proxy": {"usage": counts, "payload": {"request": json.dumps(ASKED)}}},
    }
    line = "time=started_at,prompt=ai.proxy.payload.request,"
    line += "input=ai.proxy.usage.prompt_tokens,output=ai.proxy.usage.completion_tokens"
    assert likely_columns(log) == line
    file = tmp_path / "kong.log"
    file.write_text(json.dumps(log))
    assert lengths(open_trace(file, TraceOptions(columns=parse_columns(line)))) == [(0, 32, 3)]
    log["ai"]["proxy"]["payload"] = {"request": json.dumps({"query": "a"})}
    assert likely_columns(log) == line.replace("prompt=ai.proxy.payload.request,", "")
