"""``Chains``: builds whole prompts of requests that have only what they add to a response or a conversation.

The Responses API keeps earlier turns: a request names the response before it (``previous_response_id``), or a
``conversation``. From a log with requests and answers the whole prompt can be built: all earlier requests, each
with its answer, without reasoning. Tools and instructions are those of the request itself, as in the API.

The latest texts are kept, up to `MOST_KEPT` characters. A request that continues a turn that isn't kept is
refused.
"""

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from kv_sim.replay.readers.chats.answered import answer_in
from kv_sim.replay.readers.chats.counts import answered_in, last_of
from kv_sim.replay.readers.chats.parts import as_json
from kv_sim.replay.readers.json_values import inside, json_in, object_in
from kv_sim.replay.readers.record import MalformedError

MOST_KEPT: Final = 1 << 28
BEFORE: Final = "previous_response_id"
KEPT_AS: Final = "conversation"
_INPUT: Final = "input"
_NOT_KEPT: Final = "reasoning"
"""The type of an answer's items that aren't part of the next prompt."""
_OF_RESPONSES: Final = "resp"
"""Ids of responses begin with this."""
_CHARACTERS: Final = 4
"""How many characters stand for a token whose text is missing."""


@dataclass(frozen=True, slots=True)
class _Said:
    """All turns up to an answer, as the items of an input."""

    items: tuple[Any, ...]
    size: int
    """Characters of the last turn."""
    first: str
    """The id of the first response of its chain."""


class Chains:
    """The chains of one trace, whose requests come in the order of the file."""

    def __init__(self) -> None:
        self._said: OrderedDict[str, _Said] = OrderedDict()
        self._size = 0

    def whole(self, record: Mapping[str, Any], asked: Mapping[str, Any]) -> tuple[Mapping[str, Any], str | None]:
        """The request with all earlier turns, and the id of its chain's first response, if known."""
        if _INPUT not in asked:
            return asked, None
        before, kept_as = _name(asked, BEFORE), _name(asked, KEPT_AS)
        said = self._said.get(before or kept_as or "")
        if before is not None and said is None:
            raise MalformedError(
                f"{BEFORE}: expected a whole prompt, or one that goes on from a response above, and "
                f"{before!r:.60} isn't there, or not with what was answered"
            )
        own, response = _items(asked[_INPUT]), _response_of(record)
        items, name = (*(said.items if said else ()), *own), kept_as or _name(response, "id")
        first = said.first if said else name
        if name is not None and first is not None and (answer := _answer(record, response, name)):
            size = sum(len(as_json(item)) for item in (*own, *answer))
            self._keep(name, _Said((*items, *answer), size, first))
        elif kept_as is not None:
            raise MalformedError(
                f"{KEPT_AS}: expected a whole prompt, or what was answered as well, got what is added to one that "
                "is kept elsewhere"
            )
        if before is None and kept_as is None:
            return asked, first
        left = {field: value for field, value in asked.items() if field not in (BEFORE, KEPT_AS)}
        return {**left, _INPUT: [*items]}, first

    def _keep(self, name: str, said: _Said) -> None:
        if name in self._said:
            self._size -= self._said.pop(name).size
        self._said[name] = said
        self._size += said.size
        while self._size > MOST_KEPT and len(self._said) > 1:
            self._size -= self._said.popitem(last=False)[1].size

    def check(self) -> None:
        """Recount."""
        sizes = sum(said.size for said in self._said.values())
        assert sizes == self._size, f"{self._size} characters were counted, there are {sizes}"


def _name(place: Any, field: str) -> str | None:
    """A name, or the ``id`` of an object."""
    value = inside(place, field)
    value = inside(value, "id") if isinstance(value, dict) else value
    return value if isinstance(value, str) and value else None


def _items(said: Any) -> list[Any]:
    found = json_in(said)
    if isinstance(found, list):
        return found
    return [{"role": "user", "content": said}]


def _response_of(record: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The response of a record, found by a field's name or by its form."""
    return next(
        (
            place
            for place in _responses(record)
            if place is not None
            and (str(place.get("id")).startswith(_OF_RESPONSES) or place.get("object") == "response")
        ),
        None,
    )


def _responses(record: Mapping[str, Any]) -> Iterator[Mapping[str, Any] | None]:
    response = object_in(record.get("response"))
    yield response
    yield object_in(inside(response, "body"))
    for field in ("response_body", "full_response", "response", "output"):
        yield last_of(record.get(field))
    yield record


def _answer(record: Mapping[str, Any], response: Mapping[str, Any] | None, name: str) -> list[Any]:
    """The items of the answer, or its text, or text of the same length; empty if the length is unknown."""
    output = json_in(inside(response, "output"))
    if isinstance(output, list) and output:
        return [item for item in output if inside(item, "type") != _NOT_KEPT]
    text = answer_in(record)
    if text is None:
        tokens = answered_in(record) or 0
        text = (f"{name} " * (_CHARACTERS * tokens // len(name) + 1))[: _CHARACTERS * tokens]
    if not text:
        return []
    return [{"role": "assistant", "content": text}]
