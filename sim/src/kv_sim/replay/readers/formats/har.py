"""The traffic of a browser or a proxy (HAR): requests to a model among others."""

import base64
from collections.abc import Iterator, Mapping
from typing import Any

from kv_sim.replay.readers.chats.chains import Chains
from kv_sim.replay.readers.chats.chat import is_request
from kv_sim.replay.readers.format import Container, Format
from kv_sim.replay.readers.formats.openai import requests_in
from kv_sim.replay.readers.json_values import inside, objects_in
from kv_sim.replay.readers.record import MalformedError, Record


def _parse(record: Mapping[str, Any]) -> Iterator[Record]:
    log = record["log"]
    if not isinstance(log, dict):
        raise MalformedError(f"log: expected an object with entries, got {type(log).__name__}")
    chains = Chains()
    for number, entry in sorted(enumerate(objects_in(log, "entries")), key=_begin):
        found = _logged(entry)
        if is_request(found):
            try:
                yield from requests_in(found, chains)
            except MalformedError as error:
                raise MalformedError(f"log.entries[{number}]: {error}") from None


def _begin(numbered: tuple[int, Mapping[str, Any]]) -> str:
    """The date of an entry, as text; all entries of one writer have the same form."""
    return str(numbered[1].get("startedDateTime"))


def _logged(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    """An entry as a record of a log."""
    request, response = entry.get("request"), entry.get("response")
    return {
        "timestamp": entry.get("startedDateTime"),
        "url": inside(request, "url"),
        "request_body": inside(inside(request, "postData"), "text"),
        "status": inside(response, "status"),
        "response_body": _text(inside(response, "content")),
    }


def _text(content: Any) -> Any:
    text = inside(content, "text")
    if inside(content, "encoding") != "base64" or not isinstance(text, str):
        return text
    try:
        return base64.b64decode(text, validate=True).decode()
    except ValueError:
        return None


HAR = Format(
    "har",
    Container.JSON,
    ("log",),
    _parse,
    matches=lambda record: isinstance(inside(record["log"], "entries"), list),
    looked_for="entries in it",
    is_text=True,
    assumes="whatever isn't a request to a model is left out",
)
