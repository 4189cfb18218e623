"""Streamed requests in Logfire: it writes each one twice, as a span and, when the stream has ended, as a log.

The span ends with the call, before anything was answered, and has the prompt; the log repeats the prompt, and has
the answer and its duration. The log counts as the request, and the span is left out. They have no id in common, so
a span is matched with the next log of the same prompt.
"""

from collections import Counter
from typing import Final

from kv_sim.replay.readers.formats.spans.otlp import SPAN_TYPE, Named, SpanOrEvent
from kv_sim.replay.readers.record import Moment

_TOOK: Final = "duration"
_SAME: Final = ("gen_ai.request.model", "gen_ai.input.messages", "request_data")
_ANSWERED: Final = ("gen_ai.response.id", "gen_ai.usage.input_tokens", "gen_ai.output.messages", "response_data")
_NANOSECONDS: Final = 10**9


class Streams:
    """The stream logs of one trace; each belongs to a span, earlier or later in the trace."""

    def __init__(self) -> None:
        self._ended = Counter[int]()

    def see(self, seen: SpanOrEvent) -> None:
        """Look at a record of the trace."""
        if _has_ended(seen.named):
            self._ended[_same(seen.named)] += 1

    def is_told_again(self, seen: SpanOrEvent) -> bool:
        """Whether this is the span of a stream that has a log, too. Each log counts for one span."""
        named = seen.named
        if named.get(SPAN_TYPE) != "span" or any(field in named for field in _ANSWERED):
            return False
        same = _same(named)
        self._ended[same] -= 1
        return self._ended[same] >= 0


def began(seen: SpanOrEvent) -> int | float:
    """When the request of a record began; for a log, its time minus its duration."""
    time = seen.time
    if not _has_ended(seen.named):
        return time
    took = seen.named[_TOOK]
    return Moment(time - took) if isinstance(time, Moment) else time - round(took * _NANOSECONDS)


def _has_ended(named: Named) -> bool:
    """Whether a record is the log of a stream."""
    return named.get(SPAN_TYPE) == "log" and isinstance(named.get(_TOOK), float)


def _same(named: Named) -> int:
    return hash(tuple(str(named.get(field)) for field in _SAME))
