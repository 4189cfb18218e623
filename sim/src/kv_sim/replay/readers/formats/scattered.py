"""What a model was asked where each message is an event of a log: those of one span are one request.

A log may have a record of each of them, or be cut into records anywhere between them. So messages are kept from
when all records are looked through until the first record with one of them is parsed, which the request is of.
"""

from collections.abc import Iterator

from kv_sim.replay.readers.formats.otlp import SpanOrEvent


class Scattered:
    """The messages of one trace, by the span that they are of."""

    def __init__(self) -> None:
        self._asked: dict[int, SpanOrEvent] = {}

    def see(self, seen: SpanOrEvent) -> bool:
        """Look at what a record has. Whether it is one or some of the messages of a request."""
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
        """The request that begins in a record; None: it began in an earlier one. What isn't messages, as it is."""
        if seen.own is None or not _are_messages(seen):
            return seen
        return self._asked.pop(seen.own, None)


def _are_messages(seen: SpanOrEvent) -> bool:
    return seen.is_event and bool(seen.messages)
