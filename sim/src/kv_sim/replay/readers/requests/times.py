"""``Times``: when requests arrive: by one common clock, by each session's own, or in the order of the file."""

from collections.abc import Iterator

from kv_sim.replay.readers.account import Account
from kv_sim.replay.readers.format import Format
from kv_sim.replay.readers.record import DelayedRecord, MalformedError, Moment, Record
from kv_sim.replay.readers.requests.turns import TURN_SECONDS


class Times:
    """The arrivals of one trace, request by request in the order of the file."""

    def __init__(self, form: Format, unit_seconds: float, stagger_seconds: float, account: Account) -> None:
        self._form = form
        self._unit_seconds = unit_seconds
        self._stagger_seconds = stagger_seconds
        self._account = account
        self.are_made_up = False
        """Whether times are invented, since the first request has none."""
        self._are_dates: bool | None = None
        """Whether times are dates, according to the first time in the trace."""
        self._zero: int | float | None = None
        """The first time in the trace, from which all are counted."""
        self._last_turns: dict[str | None, float] = {}
        """Session -> the arrival of its last request, from which the delay of its next one counts."""
        self._starts: dict[str | None, float] = {}
        """Session -> its start, if each session counts its own time."""
        self._first_times: set[int | float] = set()
        """The first times of the sessions that count their own time."""

    def arrival(self, record: Record, number: int) -> float:
        """When a request arrives, in seconds."""
        unit = self._unit_of(record.time)
        if self._zero is None and record.time is not None and not self.are_made_up:
            self._zero = record.time
        session = record.session
        delay = record.delay if isinstance(record, DelayedRecord) else None
        if record.time is None and (delay is not None or self._form.merges_sessions):
            arrival = self._after(session, delay)
        elif record.time is None:
            if self._zero is not None:
                raise MalformedError("it has no time, but a request above it has one")
            # Without times, one request a second keeps the order; but a turn comes after the turn before it.
            arrival = max(float(number), self._last_turns.get(session, 0.0))
            self.are_made_up = True
        elif self._form.merges_sessions:
            arrival = self._start_of(session, record.time) + record.time * unit
        elif self.are_made_up:
            raise MalformedError("it has a time, but requests above it have none")
        else:
            arrival = (record.time - (self._zero or 0)) * unit
        if isinstance(record, DelayedRecord):
            self._last_turns[session] = arrival
        return arrival

    def _after(self, session: str | None, delay: int | float | None) -> float:
        """When a turn arrives that has only a delay after the turn before, or nothing."""
        if session not in self._last_turns and self._form.merges_sessions:
            return self._start_of(session, delay or 0) + (delay or 0) * self._unit_seconds
        self._account.delayed += delay is not None
        seconds = TURN_SECONDS if delay is None else delay * self._unit_seconds
        return self._last_turns.get(session, 0.0) + seconds

    def _start_of(self, session: str | None, first_time: int | float) -> float:
        """The start of a session that counts its own time; set at its first request."""
        if session not in self._starts:
            self._starts[session] = len(self._starts) * self._stagger_seconds
            self._first_times.add(first_time)
        return self._starts[session]

    def _unit_of(self, time: int | float | None) -> float:
        """The seconds of a time's unit; refuses a trace that mixes dates and numbers."""
        if time is None:
            return self._unit_seconds
        is_date = isinstance(time, Moment)
        if self._are_dates is None:
            self._are_dates = is_date
        if self._are_dates is not is_date:
            kinds = ("a date", "a number")
            own, other = kinds if is_date else reversed(kinds)
            raise MalformedError(f"its time is {own}, and that of a request above it {other}")
        return 1.0 if is_date else self._unit_seconds

    def notes(self) -> Iterator[str]:
        """Notes on sessions that count their own time, when all requests are read."""
        if len(self._starts) == 1 and self._stagger_seconds:
            yield "there is one session, and nothing is staggered (--stagger)"
        if len(self._starts) > 1 and len(self._first_times) == 1 and not self._stagger_seconds:
            yield f"{len(self._starts)} sessions count their own time, so all begin at once (--stagger)"
