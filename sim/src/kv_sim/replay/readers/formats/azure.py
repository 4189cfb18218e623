"""Azure's LLM inference traces, CSV: times of day and lengths. No ids."""

from collections.abc import Iterator, Mapping
from typing import Any

from kv_sim.replay.readers.dates import date_in
from kv_sim.replay.readers.fields import moment, whole
from kv_sim.replay.readers.format import Container, Format
from kv_sim.replay.readers.record import MalformedError, Record


def _parse(record: Mapping[str, Any]) -> Iterator[Record]:
    text = record["TIMESTAMP"]
    date = date_in(text)
    if date is None:  # in Parquet it may be anything
        raise MalformedError(f"TIMESTAMP: expected a date and a time, got {text!r}")
    yield Record(moment(date), whole(record, "ContextTokens"), whole(record, "GeneratedTokens"), None)


AZURE = Format("azure", Container.CSV, ("TIMESTAMP", "ContextTokens", "GeneratedTokens"), _parse)
