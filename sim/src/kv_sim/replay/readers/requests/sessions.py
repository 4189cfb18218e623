"""Which requests belong together: conversations of several chats, retries, and sessions with their own ids.

Memory is bounded, except for conversations and sessions, which take an entry each.
"""

from collections.abc import Sequence
from typing import Final

from kv_sim.replay.columns import NO_SESSION
from kv_sim.replay.readers.record import Id, Record
from kv_sim.replay.units import counted

_RECENT: Final = 1 << 16
_SESSIONS: Final = 1 << 12
_FEWEST: Final = 3


class Conversations:
    """Gives all chats of a conversation one name, where each chat names the chat before it."""

    def __init__(self) -> None:
        self._first: dict[str, str] = {}
        self._unseen: set[str] = set()
        self._split = 0

    def name(self, record: Record) -> str | None:
        """The conversation of a request: its first chat, or the earliest one that is known so far."""
        if record.parent is None or record.session is None:
            return record.session
        self._split += record.session in self._unseen
        if record.parent not in self._first:
            self._unseen.add(record.parent)
        first = self._first.get(record.parent, record.parent)
        self._first[record.session] = first
        return first

    def note(self) -> str | None:
        """For the reader of a report."""
        if not self._split:
            return None
        chats = counted(
            self._split,
            "chat stands below one that goes on with it, and counts as another session",
            "chats stand below one that goes on with them, and count as other sessions",
        )
        return f"{chats} (--id-scope session, --routing session)"


class SessionNumbers:
    """Numbers sessions in the order of their first requests."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def of(self, session: str | None) -> int:
        """The number of a session."""
        return NO_SESSION if session is None else self._numbers.setdefault(session, len(self._numbers))


class Retries:
    """Counts repeated requests: those whose name is also among the last requests'."""

    def __init__(self) -> None:
        self._names: dict[str, None] = {}
        self._count = 0

    def see(self, name: str | None) -> None:
        """Look at the next request."""
        if name is None:
            return
        if name in self._names:
            self._count += 1
        elif len(self._names) >= _RECENT:
            del self._names[next(iter(self._names))]
        self._names[name] = None

    def note(self, what: str, whole: str) -> str | None:
        """A note for the report; ``what`` and ``whole`` say what a request is, and what two of one name may be."""
        if not self._count:
            return None
        again = counted(
            self._count,
            f"{what} has the request_id of one before it, and counts like any other",
            f"{what}s have the request_id of one before them, and count like any other",
        )
        return f"{again}: {whole}"


class OwnIds:
    """Notes whether each session seems to have its own ids: its first prompt's ids count up from 0 or 1.

    If all sessions shared ids, only sessions with the same first prompt could begin so.
    """

    def __init__(self) -> None:
        self._seen: set[str] = set()
        self._lengths: set[int] = set()
        self._first: Id | None = None
        self._looks = True

    def see(self, session: str | None, ids: Sequence[Id]) -> None:
        """Look at one request, unless ids were seen to be shared, or the sample is full."""
        if not self._looks or session is None or session in self._seen or not ids or len(self._seen) >= _SESSIONS:
            return
        self._seen.add(session)
        first = ids[0] if self._first is None else self._first
        self._first = first
        self._lengths.add(len(ids))
        self._looks = first in (0, 1) and list(ids) == list(range(int(first), int(first) + len(ids)))

    def note(self) -> str | None:
        """For the reader of a report."""
        if not self._looks or len(self._seen) < _FEWEST or len(self._lengths) < 2:
            return None
        return (
            f"ids of each of {len(self._seen)} sessions count up from {self._first}: if they are a session's own, "
            "say --id-scope session"
        )
