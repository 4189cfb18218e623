"""LMCache's lookup log: the hashes of the full chunks that a request looked up; seconds.

A chunk's hash covers only tokens: two models have the same hashes for one prompt. A request may look up again.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from kv_sim.replay.readers.fields import id_list, number, positive, text_of, whole
from kv_sim.replay.readers.format import Container, Format
from kv_sim.replay.readers.record import Record


def _parse(record: Mapping[str, Any]) -> Iterator[Record]:
    chunk = positive(record, "chunk_size")
    yield Record(
        number(record, "timestamp"),
        whole(record, "seq_len"),
        0,
        id_list(record, "chunk_hashes"),
        text_of(record, "request_id"),
        chunk,
        model=text_of(record, "model_name"),
    )


LMCACHE = Format(
    "lmcache",
    Container.JSON,
    ("timestamp", "chunk_size", "seq_len", "chunk_hashes"),
    _parse,
    has_retries=True,
)
