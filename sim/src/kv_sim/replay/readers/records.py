"""``Records``: parses the records of a trace's files, each with its place and with its text cut into blocks.

A malformed record is refused, or left out and counted. Records that are no request to a model, and repeated
requests, are also left out and counted.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from kv_api import ConfigError
from kv_sim.replay.readers.account import Account
from kv_sim.replay.readers.chats.asked import has_failed
from kv_sim.replay.readers.fields import TIMES, dates_in
from kv_sim.replay.readers.files.objects import Broken, Found, Place, gathered
from kv_sim.replay.readers.format import Format
from kv_sim.replay.readers.options import SKIP_GOES_ON, OnError, TraceOptions
from kv_sim.replay.readers.record import MalformedError, Record
from kv_sim.replay.readers.requests.naming import IdScope
from kv_sim.replay.readers.requests.sessions import Conversations
from kv_sim.replay.readers.requests.text import Text

_NO_FIELDS: Final[tuple[str, ...]] = ()


class Records:
    """The records of one trace, while it is read."""

    def __init__(
        self, form: Format, options: TraceOptions, text: Text, account: Account, conversations: Conversations
    ) -> None:
        self._form = form
        self._options = options
        self._text = text
        self._account = account
        self._conversations = conversations
        self._wanted = form.fields if form.gather is None else _NO_FIELDS
        self._names: set[str] = set()
        """The names of requests so far, if each name counts once."""
        self.dates = ""
        """A hint which field may be the time of the first record, if it has no time that is known."""

    def of(self, files: Iterator[Iterator[Found]]) -> Iterator[tuple[Place, Record]]:
        """The records of several files, of each of which the raw records are given."""
        numbered = ((file, *one) for file, found in enumerate(files) for one in gathered(found, self._form))
        for number, (file, place, value) in enumerate(numbered):
            try:
                for record in self._parsed(value, is_first=not number):
                    record.session = self._session_of(record, file, number)
                    yield place, record
            except MalformedError as error:
                self.take_malformed(place, error)

    def take_malformed(self, place: Place, error: MalformedError) -> None:
        """A record is malformed: refuse the trace, or leave the record out and count it."""
        if self._options.on_error is OnError.STOP:
            raise ConfigError(f"{place}: {error}{SKIP_GOES_ON}") from None
        self._account.skip(f"{place}: {error}")

    def _parsed(self, value: Mapping[str, Any] | Broken, *, is_first: bool) -> Iterator[Record]:
        form = self._form
        if isinstance(value, Broken):
            raise MalformedError(value.reason)
        missing = next((name for name in self._wanted if name not in value), None)
        if missing is not None:
            raise MalformedError(f"{missing}: no such field, and it isn't of format {form.name} without")
        for record in form.parse(value):
            if record.time is None and is_first and (dates := dates_in(value)):
                self.dates = f" (if {' or '.join(dates)} is the time, call it {TIMES[0]})"
            if not form.is_sorted_when_read:  # a record is one request, not a session
                record.has_failed |= has_failed(value)
            if record.left_out is not None:
                self._account.leave_out(record.left_out)
            elif self._is_there_again(record):
                self._account.copies += 1
            else:
                self._text.cut(record)
                yield record

    def _is_there_again(self, record: Record) -> bool:
        if not self._form.comes_once or record.name is None:
            return False
        if record.name in self._names:
            return True
        self._names.add(record.name)
        return False

    def _session_of(self, record: Record, file: int, number: int) -> str | None:
        """A name of its session that is unique in the trace."""
        form = self._form
        if form.is_sorted_when_read and not form.names_sessions:
            # Names are unique only within a file: two files may have the same one.
            goes_on = form.sessions_go_on and record.session
            whose = f"file {file}" if goes_on else str(number)
            return " ".join(filter(None, (whose, record.session)))
        if self._options.scope is IdScope.SESSION or self._options.sessions:
            return self._conversations.name(record)
        return record.session
