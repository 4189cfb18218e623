"""Tables of a log with requests to an API in a column of JSON: Helicone's exports, LiteLLM's spend logs."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from kv_sim.replay.readers.chats.chat import is_request
from kv_sim.replay.readers.format import Container, Format
from kv_sim.replay.readers.formats.openai import OPENAI
from kv_sim.replay.readers.json_values import object_in
from kv_sim.replay.readers.record import MalformedError, Record

_COLUMNS: Final = ("request_body", "proxy_server_request")


def _parse(record: Mapping[str, Any]) -> Iterator[Record]:
    column = next((column for column in _COLUMNS if column in record), _COLUMNS[0])
    body = _body(record.get(column, ""))
    if not body:
        got = record.get(column, "no such column")
        raise MalformedError(
            f"{column}: expected the JSON of what an API was asked, got {got!r:.40}; "
            "without it --columns says which are lengths and times"
        )
    said = {name: cell for name, cell in record.items() if not isinstance(cell, str) or cell.strip()}
    return OPENAI.parse({**said, column: body})


def _body(cell: Any) -> Mapping[str, Any] | None:
    """The object in a cell. Helicone's tool doubles its quotes twice."""
    return object_in(cell) or (object_in(cell.replace('""', '"')) if isinstance(cell, str) else None)


def _is_logged(record: Mapping[str, Any]) -> bool:
    if _COLUMNS[0] in record:
        return True
    return is_request({"body": _body(record.get(_COLUMNS[1], ""))})


TABLE = Format(
    "openai-table",
    Container.CSV,
    (),
    _parse,
    matches=_is_logged,
    looked_for="request_body or proxy_server_request",
    is_text=True,
)
