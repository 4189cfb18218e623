"""``Meaning``: collects evidence, record by record, of what a trace's ids and sessions mean, for the notes."""

from pathlib import Path

from kv_api import ConfigError
from kv_sim.replay.readers.files.objects import Place
from kv_sim.replay.readers.format import Format
from kv_sim.replay.readers.options import TraceOptions
from kv_sim.replay.readers.record import Record
from kv_sim.replay.readers.requests.naming import Evidence, IdMeaning, IdScope
from kv_sim.replay.readers.requests.sessions import Conversations, OwnIds, Retries


class Meaning:
    """The evidence so far."""

    def __init__(self, form: Format, options: TraceOptions, conversations: Conversations) -> None:
        self._form = form
        self._options = options
        self._conversations = conversations
        self._evidence = Evidence()
        self._retries = Retries()
        self._own_ids = OwnIds()
        self._has_sessions = False
        self._has_own_ids = False

    def see(self, record: Record, place: Place) -> None:
        """Look at the next record, which has ids."""
        assert record.ids is not None
        is_local = bool(record.is_session_local)
        self._has_sessions |= record.session is not None
        self._has_own_ids |= is_local
        if self._options.scope is not IdScope.AUTO:
            is_local = self._options.scope is IdScope.SESSION
        self._evidence.add(record.ids, record.session if is_local else None, str(place))
        asked_first = record.parent is None  # chats that continue one aren't further sessions
        if (
            self._options.scope is IdScope.AUTO
            and not is_local
            and record.is_session_local is None
            and asked_first
        ):
            self._own_ids.see(record.session, record.ids)
        self._retries.see(record.session if self._form.has_retries else record.name)

    def notes(self, path: str | Path) -> list[str]:
        """Notes for the report. Ids that contradict ``--ids`` are refused."""
        conflict, notes = self._evidence.conflict, []
        if conflict is not None and self._options.ids is IdMeaning.PREFIX:
            raise ConfigError(f"{path}: --ids prefix, but these aren't prefix ids: {conflict}")
        if conflict is not None and not self._form.is_text:  # ids of text were made here, to be chained
            notes.append(f"ids name a block by itself, so they were chained: {conflict}")
        if self._has_own_ids and self._options.scope is IdScope.AUTO:
            notes.append(
                "ids are a session's own: what sessions share can't be seen, so hit ratios are a lower bound"
            )
        if self._options.scope is IdScope.SESSION and not self._has_sessions:
            notes.append("no request has a session: nothing is kept apart (--id-scope)")
        again = (
            ("lookup", "a request that was tried again finds what it stored")
            if self._form.has_retries
            else ("request", "is it one that was tried again, or has the log two lines of each?")
        )
        seen = (self._own_ids.note(), self._conversations.note(), self._retries.note(*again))
        return [*notes, *(note for note in seen if note)]
