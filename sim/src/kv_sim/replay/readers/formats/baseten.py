"""Baseten's traces, which aiperf reads as Parquet, as JSON or as a table: prompts with the hashes of their blocks.

The hashes are a server's; without them the prompt is used. Milliseconds.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from kv_sim.replay.readers.fields import ids_in, number, positive, text_of, whole
from kv_sim.replay.readers.format import Format
from kv_sim.replay.readers.record import Record
from kv_sim.replay.readers.required import text_at

_TIME: Final = "timestamp_start_unix_ms"
_SESSIONS: Final = ("provided_session_id", "poor_man_session_id")
_NONE: Final[tuple[Any, ...]] = (None, "", "[]", [])
"""No hashes: a prompt may be shorter than a block."""


def _parse_hashes(record: Mapping[str, Any]) -> Iterator[Record]:
    ids = [] if record.get("total_hashes") in _NONE else ids_in(record, "total_hashes")
    block = None if record.get("block_size") in _NONE else positive(record, "block_size")
    yield Record(
        number(record, _TIME),
        whole(record, "input_tokens"),
        whole(record, "output_tokens"),
        ids,
        _session_of(record),
        block_tokens=block,
        model=text_of(record, "model_name") or None,
    )


def _parse_text(record: Mapping[str, Any]) -> Iterator[Record]:
    prompt = text_at(record["prompt"], "prompt")
    yield Record(
        number(record, _TIME),
        0,
        whole(record, "output_tokens"),
        None,
        _session_of(record),
        model=text_of(record, "model_name") or None,
        text=[prompt],
    )


def _session_of(record: Mapping[str, Any]) -> str | None:
    return next((name for field in _SESSIONS if (name := text_of(record, field))), None)


BASETEN = Format(
    "baseten",
    None,
    (_TIME, "input_tokens", "output_tokens", "total_hashes"),
    _parse_hashes,
    unit_seconds=1e-3,
    matches=lambda record: record["total_hashes"] not in _NONE,
    looked_for="some hashes",
)

BASETEN_TEXT = Format(
    "baseten-text",
    None,
    (_TIME, "prompt", "output_tokens"),
    _parse_text,
    unit_seconds=1e-3,
    is_text=True,
)
