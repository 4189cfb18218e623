"""The messages of chats that programs keep. Each answer is a request, and the messages above it are its prompt.

A request arrives when the last message above it was written, or, without such a time, when its answer was.
Messages are in a list, or each names the one above it; then a regenerated answer is another request.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, TypeAlias, TypeVar

from kv_sim.replay.readers.chats.chat import ANSWERS, chat
from kv_sim.replay.readers.fields import number_or_date, text_of, whole
from kv_sim.replay.readers.json_values import inside
from kv_sim.replay.readers.record import MalformedError, Record
from kv_sim.replay.readers.required import errors_at, object_at

LEFT_OUT: Final = "the system prompt and tools, which a session leaves out, are not counted"
"""The assumption of formats of kept sessions, for the notes."""
_PLACE: Final = "messages[0]."
_Heard = TypeVar("_Heard")


@dataclass(frozen=True)
class Said:
    """One message, as it is sent with later requests."""

    text: Sequence[str]
    """Its text after its role; empty if it has no text."""
    time: int | float | None = None

    @property
    def words(self) -> str:
        """Its text without its role."""
        return "".join(self.text).partition("|>")[2]


Above: TypeAlias = Sequence[Said | MalformedError]
"""What was said above an answer, and in place of what can't be read, why."""


def said(role: str, content: Any, place: str, time: int | float | None = None) -> Said:
    """A message whose content has the form of an API's."""
    parts = [one for one in content if one != ""] if isinstance(content, list) else content
    if parts is None or parts in ("", []):
        return Said((), time)
    try:
        return Said(chat({"messages": [{"role": role, "content": parts}]})[:-1], time)
    except MalformedError as error:
        raise MalformedError(f"{place}.{str(error).removeprefix(_PLACE)}") from None


class Heard:
    """Caches the text of each message, which all answers below it need."""

    def __init__(self, say: Callable[[Mapping[str, Any]], Iterable[Said]]) -> None:
        self._say = say
        self._heard: dict[int, list[Said | MalformedError]] = {}

    def of(self, messages: Iterable[Mapping[str, Any]]) -> list[Said | MalformedError]:
        """The texts of messages, which must live as long as this cache."""
        return [one for message in messages for one in self._of(message)]

    def _of(self, message: Mapping[str, Any]) -> list[Said | MalformedError]:
        if id(message) not in self._heard:
            try:
                self._heard[id(message)] = [*self._say(message)]
            except MalformedError as error:
                self._heard[id(message)] = [error]
        return self._heard[id(message)]


def request(
    above: Above,
    place: str | None,
    time: int | float | None,
    session: str | None = None,
    model: str | None = None,
    tokens: int | None = None,
    text: str = "",
    told_tokens: int | None = None,
    **more: Any,
) -> Iterator[Record]:
    """The request to which an answer belongs; none if there is no message before it.

    ``place`` is where a time is expected; None: the chat has no times. ``time`` is when the answer was written,
    ``tokens`` its number of tokens if that was counted, ``text`` its text, reasoning included.
    """
    heard = unbroken(above)
    asked = [piece for one in heard for piece in one.text]
    if not asked:
        return
    time = next((one.time for one in reversed(heard) if one.time is not None), time)
    if time is None and place is not None:
        raise MalformedError(f"{place}: expected a time of it, or of a message above it, got none")
    yield Record(
        time,
        0,
        tokens or 0,
        None,
        session=session,
        model=model,
        text=[*asked, f"<|{ANSWERS}|>"],
        answer=text if tokens is None else None,
        told_tokens=told_tokens,
        **more,
    )


def unbroken(heard: Iterable[_Heard | MalformedError], where: str = "") -> list[_Heard]:
    """Texts, none of which may be malformed; ``where`` is put before an error."""
    found: list[_Heard] = []
    for one in heard:
        if isinstance(one, MalformedError):
            raise MalformedError(f"{where}{one}")
        found.append(one)
    return found


def malformed(why: str) -> Iterator[Record]:
    """What is read of a line that is malformed: an error."""
    return request([MalformedError(why)], None, None)


def placed(messages: Any, place: str) -> list[tuple[str, Mapping[str, Any]]]:
    """The messages of a list, or of an object by name, each with its place."""
    if isinstance(messages, dict):
        found = [(f"{place}.{name}", one) for name, one in messages.items()]
    elif isinstance(messages, list):
        found = [(f"{place}[{number}]", one) for number, one in enumerate(messages)]
    else:
        raise MalformedError(f"{place}: expected messages, got {type(messages).__name__}")
    return [(where, object_at(one, where)) for where, one in found]


def named(found: Sequence[tuple[str, Mapping[str, Any]]], name: str, above: str) -> dict[str, Mapping[str, Any]]:
    """Messages by their names, or by their places; in a row, unless one names another that is above it."""
    messages = {text_of(one, name) or place: one for place, one in found}
    if any(text_of(one, above) in messages for one in messages.values()):
        return messages
    row = {lower: upper for upper, lower in pairwise(messages)}
    return {name: {**one, above: row.get(name)} for name, one in messages.items()}


def names_above(nodes: Mapping[str, Any], name: str, field: str) -> list[str]:
    """The names of the nodes above one, the topmost first, where each node names the one above it."""
    found: list[str] = []
    above = text_of(nodes[name], field)
    while above is not None and isinstance(nodes.get(above), dict) and len(found) < len(nodes):
        found.append(above)  # unless nodes form a cycle
        above = text_of(nodes[above], field)
    return found[::-1]


def time_in(message: Mapping[str, Any], field: str, place: str) -> int | float | None:
    """When a message was written, if it has that time."""
    if message.get(field) is None:
        return None
    with errors_at(place):
        return number_or_date(message, field)


def counted_in(counts: Any, fields: Sequence[str], place: str) -> int | None:
    """The sum of some counts; None if the first one is missing."""
    if inside(counts, fields[0]) is None:
        return None
    with errors_at(place):
        return sum(whole(counts, one, usual=0) for one in fields)
