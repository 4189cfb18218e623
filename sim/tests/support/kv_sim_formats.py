"""A small trace of each format."""

import json

import kv_sim_foreign_traces
from kv_sim_records import call, lines, mooncake, weka

from kv_sim.replay.readers.options import TraceOptions
from kv_sim.replay.readers.requests.sharing import Sharing


def said(who, characters):
    return {"from": who, "value": "x" * characters}


def user(content):
    return {"role": "user", "content": content}


SHARED_PROMPT = "You are a helpful assistant. " * 6


CASES = {
    "mooncake": (lines(mooncake(5, 1500, [0, 1, 2]), mooncake(3005, 1024, [0, 1])), 512, [0, 3]),
    "lmbench": (
        lines(
            mooncake("1753780607550317897", 1500, [9, 8, 7]),
            mooncake("1753780610550317897", 1024, [9, 8]),
        ),
        512,
        [0, 3],
    ),
    "bailian": (
        lines(
            {**mooncake(1, 40, [5, 6, 7]), "chat_id": 1, "parent_chat_id": -1, "type": "text", "turn": 1},
            {**mooncake(4, 32, [5, 6]), "chat_id": 2, "parent_chat_id": 1, "type": "text", "turn": 2},
        ),
        16,
        [0, 3],
    ),
    "weka": (json.dumps(weka("a", call(0, [1, 2, 3]), call(3, [1, 2])), indent=1), 64, [0, 3]),
    "lmcache": (
        lines(
            {"timestamp": 1.5, "chunk_size": 256, "seq_len": 800, "chunk_hashes": ["a", "b", "c"]},
            {"timestamp": 4.5, "chunk_size": 256, "seq_len": 512, "chunk_hashes": ["a", "b"]},
        ),
        256,
        [0, 3],
    ),
    "recorded": (
        lines(
            {**mooncake(1790000000005, 40, [9, 8]), "block_size": 16},
            {**mooncake(1790000003005, 50, [9, 8, 7]), "block_size": 16},
        ),
        16,
        [0, 3],
    ),
    "azure": (
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:17:03.9799600,128,7\n2023-11-16 18:17:06.9799600,64,7\n",
        64,
        [0, 3],
    ),
    "burstgpt": (
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
        "5,GPT-4,128,7,135,Conversation log\n8,GPT-4,64,0,64,API log\n",
        64,
        [0, 3],
    ),
    "vidur": ("arrived_at,num_prefill_tokens,num_decode_tokens\n0.5,128,7\n3.5,64,7\n", 64, [0, 3]),
    "vllm": (
        lines(
            {"prompt": SHARED_PROMPT + "a" * 90, "output_tokens": 7},
            {"prompt": SHARED_PROMPT[:128], "output_tokens": 7},
        ),
        16,
        [0, 1],
    ),
    "conversations": (
        json.dumps(
            [
                {
                    "id": "a",
                    "conversations": [said("human", 119), said("gpt", 28), said("human", 20), said("gpt", 5)],
                }
            ]
        ),
        16,
        [0, 60],
    ),
    "conversations-dated": (
        json.dumps(
            [
                {
                    "conversation": [
                        {**said("human", 119), "timestamp": "2024-05-06T07:08:09Z"},
                        said("gpt", 28),
                        said("human", 20),
                        {**said("gpt", 5), "timestamp": "2024-05-06T07:10:09+00:00"},
                    ]
                }
            ]
        ),
        16,
        [0, 120],
    ),
    "openai": (
        lines(
            {"timestamp": 1790000000.5, "messages": [user("x" * 110)], "usage": {"completion_tokens": 7}},
            {"timestamp": 1790000003.5, "messages": [user("x" * 110), user("x")], "output_tokens": 7},
        ),
        16,
        [0, 3],
    ),
    **kv_sim_foreign_traces.CASES,
}


def options_for(name, **more):
    lengths = ("azure", "burstgpt", "vidur", *kv_sim_foreign_traces.LENGTHS)
    sharing = Sharing(1, 64, 0.0, 1.0) if name in lengths else None
    return TraceOptions(sharing=sharing, **more)
