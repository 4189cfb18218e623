"""``Chains``: whole prompts of requests that say only what they add to a response, or to a conversation.

The Responses API keeps what was said: a request names the response before it (``previous_response_id``), or a
``conversation``. A log that has both requests and answers has all of a prompt: what was asked before it, each with
its answer, but for thoughts; tools and instructions are those of the request itself, as the API has it.

What is kept are the latest texts, up to `MOST_KEPT` characters. Who goes on from what isn't there is refused.
"""

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from kv_sim.replay.readers.answered import answer_in
from kv_sim.replay.readers.asked import answered_in, inside, json_in, last_of, object_in
from kv_sim.replay.readers.parts import as_json
from kv_sim.replay.readers.record import MalformedError

MOST_KEPT: Final = 1 << 28
BEFORE: Final = "previous_response_id"
KEPT_AS: Final = "conversation"
_INPUT: Final = "input"
_NOT_KEPT: Final = "reasoning"
"""Items of an answer that aren't part of what comes next."""
_OF_RESPONSES: Final = "resp"
"""What names of responses begin with."""
_CHARACTERS: Final = 4
"""Of a token whose text isn't there."""


@dataclass(frozen=True, slots=True)
class _Said:
    """All that was said up to an answer, as the items of an input."""

    items: tuple[Any, ...]
    size: int
    """Characters of what came last."""
    first: str
    """The response that it began with."""


class Chains:
    """The requests of one trace, in the order in which they stand there."""

    def __init__(self) -> None:
        self._said: OrderedDict[str, _Said] = OrderedDict()
        self._size = 0

    def whole(self, record: Mapping[str, Any], asked: Mapping[str, Any]) -> tuple[Mapping[str, Any], str | None]:
        """What was asked, with all before it; and the name of the response with which that began, if known."""
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
    """A name, or what has one as its ``id``."""
    value = inside(place, field)
    value = inside(value, "id") if isinstance(value, dict) else value
    return value if isinstance(value, str) and value else None


def _items(said: Any) -> list[Any]:
    found = json_in(said)
    if isinstance(found, list):
        return found
    return [{"role": "user", "content": said}]


def _response_of(record: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The response to it, by its name or what it is."""
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
    """What was answered: its items, its text, or something as long; nothing, if nobody says how long it was."""
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
