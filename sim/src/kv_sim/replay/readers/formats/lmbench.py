"""LMBench's GMI traces: like Mooncake's, but times are strings of nanoseconds and ids aren't chained."""

from collections.abc import Iterator, Mapping
from typing import Any

from kv_sim.replay.readers.fields import id_list, number, text_of, whole
from kv_sim.replay.readers.format import Container, Format
from kv_sim.replay.readers.record import Record


def _parse(record: Mapping[str, Any]) -> Iterator[Record]:
    yield Record(
        number(record, "timestamp"),
        whole(record, "input_length"),
        whole(record, "output_length", usual=0),
        id_list(record, "hash_ids"),
        text_of(record, "session_id"),
    )


LMBENCH = Format(
    "lmbench",
    Container.JSON,
    ("timestamp", "input_length", "hash_ids"),
    _parse,
    unit_seconds=1e-9,
    block_tokens=512,
    matches=lambda record: isinstance(record["timestamp"], str),
    told_unit="times are taken for ns, as LMBench's are (--time-unit)",
)
