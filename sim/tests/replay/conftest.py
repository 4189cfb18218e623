"""A trace that is small enough to be counted by hand, and records that become one."""

import json

import pytest

from kv_sim.replay.readers.opening import open_trace
from kv_sim.replay.readers.options import TraceOptions


@pytest.fixture
def small(tmp_path):
    """Four requests; the third and the fourth use blocks of the first."""
    file = tmp_path / "small.jsonl"
    ids = ([1, 2, 3], [4, 5], [1, 2, 6], [1, 2, 3])
    requests = [
        {"timestamp": 2000 * n, "input_length": 512 * len(one) - 12, "output_length": 1, "hash_ids": one}
        for n, one in enumerate(ids)
    ]
    file.write_text("".join(json.dumps(request) + "\n" for request in requests))
    return file


@pytest.fixture
def read(tmp_path):
    """The requests of some records, and what was said of them."""

    def read(*records, **options):
        file = tmp_path / "trace.jsonl"
        file.write_text("".join(json.dumps(record) + "\n" for record in records))
        columns = open_trace(file, TraceOptions(**options))
        columns.check()
        return list(columns), columns.notes

    return read
