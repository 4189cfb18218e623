"""What kv-vllm's ``TraceConnector`` writes of a live engine: Mooncake's fields, and the tokens of a block."""

from collections.abc import Iterator, Mapping
from typing import Any

from kv_sim.replay.readers.format import Container, Format
from kv_sim.replay.readers.record import MalformedError, Record, id_list, number, whole


def _parse(record: Mapping[str, Any]) -> Iterator[Record]:
    block = whole(record, "block_size")
    if not block:
        raise MalformedError("block_size: expected at least 1, got 0")
    yield Record(
        number(record, "timestamp"),
        whole(record, "input_length"),
        whole(record, "output_length"),
        id_list(record, "hash_ids"),
        block_tokens=block,
    )


RECORDED = Format(
    "recorded",
    "JSON lines of kv-vllm's TraceConnector: timestamp (ms), input_length, output_length, block_size, hash_ids",
    Container.JSON,
    ("timestamp", "input_length", "output_length", "block_size", "hash_ids"),
    _parse,
    unit_seconds=1e-3,
)
