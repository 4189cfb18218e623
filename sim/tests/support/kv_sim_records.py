"""Records of traces, and what is seen of a trace that was read."""

import json
from typing import Any


def lines(*records: Any) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


def mooncake(timestamp, tokens, ids, **more):
    return {"timestamp": timestamp, "input_length": tokens, "output_length": 7, "hash_ids": ids, **more}


def weka(name, *requests, **more):
    return {
        "id": name,
        "models": ["m"],
        "block_size": 64,
        "hash_id_scope": "local",
        "requests": [*requests],
        **more,
    }


def call(t, ids, tokens=None):
    return {"t": t, "type": "s", "in": tokens or 64 * len(ids), "out": 2, "hash_ids": ids, "api_time": 0.5}


def seen(columns):
    """Arrivals, lengths, and how far each request shares its prompt with each one before it."""
    requests = list(columns)
    shared = []
    for later, request in enumerate(requests):
        shares = [sum(map(lambda a, b: a == b, request.blocks, other.blocks)) for other in requests[:later]]
        shared.append(max(shares, default=0))
    times = [round(request.arrival_seconds, 6) for request in requests]
    return times, [(request.input_tokens, request.output_tokens) for request in requests], shared
