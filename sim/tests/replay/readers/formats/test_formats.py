"""Every format is recognized, and becomes the same kind of trace."""

import kv_sim_foreign_traces
import pytest
from kv_sim_formats import CASES, options_for
from kv_sim_records import seen
from kv_sim_slow_replay import same

from kv_sim.replay.caches.shape import shape_of
from kv_sim.replay.readers.catalogue import FORMATS
from kv_sim.replay.readers.files.objects import gathered, objects_of
from kv_sim.replay.readers.opening import open_trace

READ = {
    "mooncake": ([(1500, 7), (1024, 7)], 2),
    "lmbench": ([(1500, 7), (1024, 7)], 2),
    "bailian": ([(40, 7), (32, 7)], 2),
    "weka": ([(192, 2), (128, 2)], 2),
    "lmcache": ([(800, 0), (512, 0)], 2),
    "recorded": ([(40, 7), (50, 7)], 2),
    "azure": ([(128, 7), (64, 7)], 1),
    "burstgpt": ([(128, 7), (64, 0)], 1),
    "vidur": ([(128, 7), (64, 7)], 1),
    "vllm": ([(66, 7), (32, 7)], 2),
    # <|user|> are 8 characters, <|assistant|> 13: the first has 140, the second 140 + 28 + 8 + 20 + 13.
    "conversations": ([(35, 7), (53, 2)], 2),
    "conversations-dated": ([(35, 7), (53, 2)], 2),
    "openai": ([(33, 7), (35, 7)], 1),
    **kv_sim_foreign_traces.READ,
}
"""Tokens in and out, and how many blocks the second request has of the first one's."""


@pytest.mark.parametrize("name", list(FORMATS))
def test_a_format_is_recognized_and_read(tmp_path, name):
    text, block_tokens, times = CASES[name]
    file = tmp_path / "trace"
    file.write_text(text)
    columns = open_trace(file, options_for(name))
    columns.check()
    shape_of(columns).check(columns)
    assert columns.notes[0] == f"format: {name}"
    assert columns.block_tokens == block_tokens
    lengths, shared = READ[name]
    assert seen(columns) == (times, lengths, [0, shared])
    assert same(columns, open_trace(file, options_for(name, format=name)))


@pytest.mark.parametrize("name", list(FORMATS))
def test_a_format_says_whether_its_prompts_are_text(tmp_path, name):
    """Or token ids; then a tokenizer can be given, and ids were made here."""
    file = tmp_path / "trace"
    file.write_text(CASES[name][0])
    form = FORMATS[name]
    records = [one for _, found in gathered(objects_of(file).found, form) for one in form.parse(found)]
    assert records
    assert {one.text is not None or one.tokens is not None for one in records} == {FORMATS[name].is_text}


NEEDED = {
    "weka": "id, block_size, requests",
    "lmcache": "timestamp, chunk_size, seq_len, chunk_hashes",
    "bailian": "chat_id, timestamp, input_length, hash_ids",
    "recorded": "timestamp, input_length, output_length, block_size, hash_ids",
    "servegen": "request_id, type, input_length",
    "lmbench": "timestamp, input_length, hash_ids",
    "mooncake": "input_length, hash_ids",
    "aibrix": "timestamp, requests",
    "langfuse": "type, input, traceId, usageDetails",
    "langsmith": "run_type, start_time, inputs",
    "sglang-log": "timestamp, event, obj",
    "har": "log",
    "sagemaker": "captureData, eventMetadata",
    "bedrock": "schemaType, timestamp, input",
    "baseten": "timestamp_start_unix_ms, input_tokens, output_tokens, total_hashes",
    "baseten-text": "timestamp_start_unix_ms, prompt, output_tokens",
    "azure": "TIMESTAMP, ContextTokens, GeneratedTokens",
    "burstgpt": "Timestamp, Request tokens, Response tokens",
    "vidur": "arrived_at, num_prefill_tokens, num_decode_tokens",
    "bench": "input_lens, output_lens",
    "mooncake-lengths": "timestamp, input_length, output_length",
    "litellm": "call_type, startTime, prompt_tokens, completion_tokens",
    "splitwise": "arrival_timestamp, prompt_size, token_size",
}
"""of a format -> the fields that tell it from others"""


@pytest.mark.parametrize("name", NEEDED)
def test_without_one_of_its_fields_a_record_is_of_another_format(tmp_path, name):
    file = tmp_path / "trace"
    file.write_text(CASES[name][0])
    _, record = next(objects_of(file).found)
    assert FORMATS[name].is_of(record)
    for field in NEEDED[name].split(", "):
        assert not FORMATS[name].is_of({other: record[other] for other in record if other != field}), field
