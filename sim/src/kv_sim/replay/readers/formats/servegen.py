"""ServeGen's traces of batch jobs: prefix ids of 16-token blocks, or lengths only. All requests arrive at once.

A record with any other field isn't of this format, since it may have a time by another name.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from kv_sim.replay.readers.fields import id_list, whole
from kv_sim.replay.readers.format import Container, Format
from kv_sim.replay.readers.record import Record

_FIELDS: Final = frozenset(
    ("request_id", "type", "input_length", "output_length", "duration", "hash_ids", "img_ids")
)


def _parse(record: Mapping[str, Any]) -> Iterator[Record]:
    ids = id_list(record, "hash_ids") if "hash_ids" in record else None
    yield Record(None, whole(record, "input_length"), whole(record, "output_length", usual=0), ids)


SERVEGEN = Format(
    "servegen",
    Container.JSON,
    ("request_id", "type", "input_length"),
    _parse,
    block_tokens=16,
    matches=lambda record: _FIELDS.issuperset(record),
    looked_for="no time",
)
