"""LMCache's lookup log: the hashes of the full chunks that a request looked up, seconds."""

from collections.abc import Iterator, Mapping
from typing import Any

from kv_sim.replay.readers.format import Container, Format
from kv_sim.replay.readers.record import MalformedError, Record, id_list, number, session_of, whole


def _parse(record: Mapping[str, Any]) -> Iterator[Record]:
    chunk = whole(record, "chunk_size")
    if not chunk:
        raise MalformedError("chunk_size: expected at least 1, got 0")
    session = session_of(record, "request_id")
    yield Record(
        number(record, "timestamp"), whole(record, "seq_len"), 0, id_list(record, "chunk_hashes"), session, chunk
    )


LMCACHE = Format(
    "lmcache",
    "LMCache lookup log, JSON lines: timestamp (s), chunk_size, seq_len, chunk_hashes of full chunks",
    Container.JSON,
    ("timestamp", "chunk_size", "seq_len", "chunk_hashes"),
    _parse,
)
