"""Vidur's CSV: seconds and lengths. No ids."""

from collections.abc import Iterator, Mapping
from typing import Any

from kv_sim.replay.readers.fields import number, whole
from kv_sim.replay.readers.format import Container, Format
from kv_sim.replay.readers.record import Record


def _parse(record: Mapping[str, Any]) -> Iterator[Record]:
    prefill, decode = whole(record, "num_prefill_tokens"), whole(record, "num_decode_tokens")
    yield Record(number(record, "arrived_at"), prefill, decode, None)


VIDUR = Format("vidur", Container.CSV, ("arrived_at", "num_prefill_tokens", "num_decode_tokens"), _parse)
