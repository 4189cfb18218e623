"""Requests whose messages are separate events of a log: the events of one span are one request.

A log may have a record for each event, or be cut into records anywhere between them. So all records are looked
through first, and the messages kept until the first record with one of them is parsed, which gets the request.
"""

from collections.abc import Iterator

from kv_sim.replay.readers.formats.spans.otlp import SpanOrEvent


class Scattered:
    """The messages of one trace, by their span."""

    def __init__(self) -> None:
        self._asked: dict[int, SpanOrEvent] = {}

    def see(self, seen: SpanOrEvent) -> bool:
        """Note the messages of a span or event. Returns whether it has any."""
        if seen.own is None or not _are_messages(seen):
            return False
        if seen.own in self._asked:
            self._asked[seen.own].messages.extend(seen.messages)
        else:
            self._asked[seen.own] = seen._replace(messages=[*seen.messages])
        return True

    def all(self) -> Iterator[SpanOrEvent]:
        """Each request that is still to be parsed, with all of its messages."""
        yield from self._asked.values()

    def whole(self, seen: SpanOrEvent) -> SpanOrEvent | None:
        """The whole request of a message; None: an earlier record has it. Without messages: the argument."""
        if seen.own is None or not _are_messages(seen):
            return seen
        return self._asked.pop(seen.own, None)


def _are_messages(seen: SpanOrEvent) -> bool:
    return seen.is_event and bool(seen.messages)
