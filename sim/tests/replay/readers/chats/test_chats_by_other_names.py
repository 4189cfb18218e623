"""Chats under the other names that logs and data sets have for them: input of an API, conversation, bzip2."""

import bz2
import json

import pytest

from kv_api import ConfigError
from kv_sim.replay.readers.chats.chat import role_of
from kv_sim.replay.readers.opening import open_trace
from kv_sim.replay.readers.options import TraceOptions, Unsorted

SAID = [{"role": "user", "content": "x" * 100}, {"role": "assistant", "content": "y" * 40}]
CALL = {"type": "function_call", "name": "look", "arguments": "{}"}


def written(tmp_path, *records):
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def prompts(path):
    return [(request.input_tokens, request.blocks) for request in open_trace(path)]


@pytest.mark.parametrize(
    "record",
    [
        {"model": "m", "input": SAID, "output_length": 3, "session_id": "s"},
        {"url": "/v1/responses", "body": {"model": "m", "input": SAID}},
        {
            "model": "m",
            "input": [{**one, "content": [{"type": "input_text", "text": one["content"]}]} for one in SAID],
        },
    ],
)
def test_input_is_read_as_messages_are(tmp_path, record):
    as_messages = prompts(written(tmp_path, {"model": "m", "messages": SAID, "timestamp": 1}))
    assert prompts(written(tmp_path, record)) == as_messages


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": one["role"], "items": [{"content_type": "text", "text": one["content"]}]} for one in SAID],
        [
            {"lc": 1, "type": "constructor", "id": ["langchain", name], "kwargs": {"content": one["content"]}}
            for name, one in zip(("HumanMessage", "AIMessage"), SAID, strict=True)
        ],
    ],
    ids=["Semantic Kernel", "LangGraph"],
)
def test_messages_lie_where_frameworks_keep_them(tmp_path, messages):
    as_messages = prompts(written(tmp_path, {"messages": SAID}))
    assert len(as_messages) == 1
    assert prompts(written(tmp_path, {"messages": messages})) == as_messages


@pytest.mark.parametrize("name", ["content", "value"])
@pytest.mark.parametrize("field", ["conversation", "conversations"])
def test_who_says_nothing_of_roles_speaks_in_turn(tmp_path, field, name):
    """As in data sets for SGLang's benchmark."""
    spoken = [*SAID, {"role": "user", "content": "z" * 60}, {"role": "assistant", "content": "no"}]
    with_roles = prompts(written(tmp_path, {"conversations": spoken}))
    assert len(with_roles) == 2
    assert prompts(written(tmp_path, {field: [{name: one["content"]} for one in spoken]})) == with_roles
    assert prompts(written(tmp_path, {field: [one["content"] for one in spoken]})) == with_roles


@pytest.mark.parametrize("more", [{"id": "a"}, {"name": "Ann"}])
def test_but_not_who_has_another_field_beside(tmp_path, more):
    spoken = [{"content": "a" * 40, **more}, {"content": "b"}]
    with pytest.raises(
        ConfigError, match=r"conversations\[0\]: expected a role \(or from\) that is text, got none"
    ):
        open_trace(written(tmp_path, {"conversations": spoken}))


def test_the_system_of_a_trajectory_speaks_in_a_field_of_its_own(tmp_path):
    """As in those of SWE-agent that Nebius publishes."""
    told = {"role": "system", "content": "t" * 80}
    spoken = [{**one, "system_prompt": None, "text": one["content"]} for one in SAID]
    spoken = [{name: one[name] for name in ("role", "system_prompt", "text")} for one in spoken]
    spoken.insert(0, {"role": "system", "system_prompt": told["content"], "text": None})
    usual = prompts(written(tmp_path, {"conversations": [told, *SAID]}))
    assert prompts(written(tmp_path, {"conversations": spoken})) == usual


def test_messages_that_are_none_are_not_there(tmp_path):
    """DSPy's history has both a prompt and messages, one of which is None."""
    usual = [{"messages": SAID[:1], "usage": {}}, {"prompt": "x" * 100, "usage": {}}]
    both = [{"prompt": None, "messages": None, **one} for one in usual]
    assert prompts(written(tmp_path, *both)) == prompts(written(tmp_path, *usual))


def test_input_that_is_text_is_what_a_user_says(tmp_path):
    asked = {"url": "/v1/responses", "body": {"instructions": "Be brief.", "input": "x" * 100}}
    said = {"messages": [{"role": "instructions", "content": "Be brief."}, SAID[0]]}
    assert prompts(written(tmp_path, asked)) == prompts(written(tmp_path, said))


@pytest.mark.parametrize(
    "field", ["max_output_tokens", "reasoning", "tool_choice", "temperature", "top_p", "truncation"]
)
def test_what_only_a_response_is_asked_with_says_that_it_is_one(tmp_path, field):
    said = {"messages": [{"role": "user", "content": "x" * 100}]}
    assert prompts(written(tmp_path, {"input": "x" * 100, field: 1})) == prompts(written(tmp_path, said))


def test_who_asks_for_an_embedding_or_a_response_is_told_how_to_say_which(tmp_path):
    with pytest.raises(ConfigError) as refused:
        prompts(written(tmp_path, {"model": "m", "input": "x"}))
    assert "; if it asks for a response, not an embedding: --format openai;" in str(refused.value)
    with pytest.raises(ConfigError) as refused:
        prompts(written(tmp_path, {"model": "m", "input": ["x"]}))
    assert "--format openai" not in str(refused.value)


@pytest.mark.parametrize("text", ["", "{}", "[1]", '[{"role": "user", "content": "a"}, 5]'])
def test_also_where_it_is_json_that_is_no_list_of_messages(tmp_path, text):
    asked = {"url": "/v1/responses", "body": {"input": text}}
    said = {"messages": [{"role": "user", "content": text}]}
    assert prompts(written(tmp_path, asked)) == prompts(written(tmp_path, said))


@pytest.mark.parametrize(
    "beside", [{"messages": SAID, "input": "z"}, {"messages": SAID, "prompt": "z"}, {"input": SAID, "prompt": "z"}]
)
def test_messages_come_before_all_else_that_is_asked(tmp_path, beside):
    assert prompts(written(tmp_path, {"body": beside})) == prompts(written(tmp_path, {"body": {"messages": SAID}}))


def test_a_call_among_the_input_counts_as_its_json(tmp_path):
    [(tokens, _)] = prompts(written(tmp_path, {"input": [SAID[0], CALL]}))
    text = f"<|user|>{'x' * 100}<|function_call|>{json.dumps(CALL, sort_keys=True)}<|assistant|>"
    assert tokens == -(-len(text) // 4)


def test_what_goes_on_with_another_response_is_refused(tmp_path):
    path = written(tmp_path, {"url": "/v1/responses", "body": {"input": "x", "previous_response_id": "r1"}})
    with pytest.raises(ConfigError) as refused:
        open_trace(path)
    problem = (
        "previous_response_id: expected a whole prompt, or one that goes on from a response above, and 'r1' isn't "
        "there, or not with what was answered"
    )
    assert str(refused.value) == f"{path}:1: {problem} (--on-error skip goes on)"


@pytest.mark.parametrize("record", [{"input": ["one", "two"]}, {"input": "text", "url": "/v1/embeddings"}])
def test_texts_to_embed_are_no_prompts(tmp_path, record):
    with pytest.raises(ConfigError, match="no known format"):
        open_trace(written(tmp_path, record))


def test_a_conversation_has_many_names(tmp_path):
    as_messages = prompts(written(tmp_path, {"messages": SAID}))
    assert prompts(written(tmp_path, {"conversation_id": "a", "turn": 1, "conversation": SAID})) == as_messages


def test_bzip2_is_unpacked_and_one_that_is_cut_off_is_an_error(tmp_path):
    plain, path = written(tmp_path, {"messages": SAID}), tmp_path / "trace.jsonl.bz2"
    packed = bz2.compress(plain.read_bytes())
    path.write_bytes(packed)
    assert prompts(path) == prompts(plain)
    assert prompts(tmp_path)  # in a folder, too
    path.write_bytes(packed[:-9])
    with pytest.raises(ConfigError, match="truncated or damaged after line 1"):
        open_trace(path)


BATCH = {"custom_id": "r1", "method": "POST", "url": "/v1/completions"}


@pytest.mark.parametrize("prompt", ["x" * 200, [*range(50)]])
def test_a_batch_of_completions_has_the_prompts_of_a_plain_list(tmp_path, prompt):
    plain = prompts(written(tmp_path, {"prompt": prompt}))
    assert plain[0][0] == 50
    assert prompts(written(tmp_path, {**BATCH, "body": {"model": "m", "prompt": prompt}})) == plain


@pytest.mark.parametrize("around", [lambda body: body, lambda body: {**BATCH, "body": body}])
def test_of_a_completion_each_prompt_is_a_request(tmp_path, around):
    asked = [{"prompt": "x" * 64}, {"prompt": [*range(20)]}, {"prompt": "y"}, {"prompt": []}]
    apart = prompts(written(tmp_path, *map(around, asked)))
    assert [tokens for tokens, _ in apart] == [16, 20, 1, 0]
    together = around({"prompt": [one["prompt"] for one in asked]})
    path = written(tmp_path, {**together, "timestamp": 5, "usage": {"completion_tokens": 11}})
    assert prompts(path) == apart
    assert [(one.arrival_seconds, one.output_tokens) for one in open_trace(path)] == [
        (0, 3),
        (0, 3),
        (0, 3),
        (0, 2),
    ]


@pytest.mark.parametrize(
    ("prompt", "got"),
    [
        ([True], "one of bool"),
        (["x", 5], "one of str"),
        ([["x"]], "one of list"),
        ([{}], "one of dict"),
        (5, "int"),
    ],
)
def test_what_is_no_prompt(tmp_path, prompt, got):
    path = written(tmp_path, {**BATCH, "body": {"prompt": prompt}})
    with pytest.raises(ConfigError) as refused:
        open_trace(path)
    problem = f"prompt: expected text, a list of token ids, or a list of such prompts, got {got}"
    assert str(refused.value) == f"{path}:1: {problem} (--on-error skip goes on)"


def test_an_export_of_helicone_is_a_log_with_the_newest_first(tmp_path):
    def logged(second, named, **asked):
        body = {"messages": SAID, **asked}
        date = f"2026-01-31T10:00:0{second}.5+00:00"
        return {"request_created_at": date, "request_body": body, "model": named, "completion_tokens": second}

    path = written(tmp_path, logged(7, "m"), logged(4, "other"), logged(3, "other", model="m"))
    with pytest.raises(
        ConfigError, match=r":2: it arrives 3 s before the request above it; --unsorted sort sorts"
    ):
        open_trace(path)
    first, second, third = open_trace(path, TraceOptions(unsorted=Unsorted.SORT))
    assert [one.arrival_seconds for one in (first, second, third)] == [0, 1, 4]
    assert [one.output_tokens for one in (first, second, third)] == [3, 4, 7]
    assert first.blocks == third.blocks != second.blocks, "what was asked names the model, else the log does"
    [(tokens, _)] = prompts(written(tmp_path, {"messages": SAID, "timestamp": 0}))
    assert {one.input_tokens for one in (first, second, third)} == {tokens}


def note_of(tmp_path, *records):
    path = tmp_path / "log.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return [note for note in open_trace(path).notes if note.startswith("usage says")]


TEXT = "x" * 380  # of 100 tokens, with its role and that of who answers


@pytest.mark.parametrize(("told", "is_noted"), [(82, False), (124, False), (150, True), (60, True), (0, False)])
def test_who_counts_other_tokens_than_a_log_does_says_so(tmp_path, told, is_noted):
    [request] = open_trace(written(tmp_path, {"messages": [{"role": "user", "content": TEXT}]}))
    record = {"messages": [{"role": "user", "content": TEXT}], "usage": {"prompt_tokens": told}}
    assert abs(request.input_tokens - 100) < 4
    note = (
        f"usage says {told:,} prompt tokens where {request.input_tokens:,} are counted here: images have no text, "
    )
    own = "and a model's template and tokenizer their own idea (--tokenizer)"
    assert note_of(tmp_path, record) == [note + own] * is_noted


def test_only_prompts_that_both_count_are_compared(tmp_path):
    long = {"messages": [{"role": "user", "content": 9 * TEXT}]}
    several = {"prompt": [TEXT, TEXT], "usage": {"prompt_tokens": 9000}}
    told = {"messages": [{"role": "user", "content": TEXT}], "response": {"usage": {"input_tokens": 101}}}
    assert note_of(tmp_path, long, several, told) == []
    odd = {"messages": [{"role": "user", "content": TEXT}], "usage": {"prompt_tokens": "many"}}
    assert note_of(tmp_path, odd) == []
    [note] = note_of(tmp_path, long, told, {**told, "response": {"usage": {"input_tokens": 900}}})
    assert note.startswith("usage says 1,001 prompt tokens where 2")


def test_a_role_that_is_said_is_the_one():
    assert role_of({"role": "user", "type": "ai"}) == "user"
    assert role_of({"type": "ai"}) == "assistant"
