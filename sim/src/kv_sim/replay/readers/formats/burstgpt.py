"""BurstGPT, CSV: seconds and lengths. No ids. Failed requests, without response tokens, count, too."""

from collections.abc import Iterator, Mapping
from typing import Any

from kv_sim.replay.readers.fields import name_in, number, text_of, whole
from kv_sim.replay.readers.format import Container, Format
from kv_sim.replay.readers.record import Record


def _parse(record: Mapping[str, Any]) -> Iterator[Record]:
    yield Record(
        number(record, "Timestamp"),
        whole(record, "Request tokens"),
        whole(record, "Response tokens"),
        None,
        session=name_in(record, "Session ID"),
        model=text_of(record, "Model"),
    )


BURSTGPT = Format("burstgpt", Container.CSV, ("Timestamp", "Request tokens", "Response tokens"), _parse)
