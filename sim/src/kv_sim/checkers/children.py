"""ACCOUNTING, of a connector that has others below it: what a child tells arrives, and a hit has its sources.

Such a connector has the attribute ``sub_connectors`` on its scheduler's side. What these answer to their parent is
noted here, and compared with what the parent tells the engine. Where a child may be switched off nothing is
compared, since the parent may leave out what that child told last.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from kv_api import KVConnectorBase_V1
from kv_sim.violation import Invariant, Referee


class Children:
    """What the children of one connector told since their parent was last asked."""

    def __init__(self, connector: KVConnectorBase_V1, referee: Referee, *, is_on: bool) -> None:
        self._referee = referee
        self._events: list[Any] = []
        self._sources: list[Any] = []
        children = list(getattr(connector, "sub_connectors", ())) if is_on else []
        self._is_on = bool(children)
        for child in children:
            self._listen(child, "take_events", self._hear_events)
            self._listen(child, "get_external_cache_hit_sources", self._hear_sources)

    def _listen(self, child: Any, name: str, hear: Callable[[Any], Any]) -> None:
        ask = getattr(child, name)
        setattr(child, name, lambda *args: hear(ask(*args)))

    def _hear_events(self, events: Iterable[Any]) -> list[Any]:
        told = list(events)  # it may be an iterator
        self._events += told
        return told

    def _hear_sources(self, sources: Any) -> Any:
        self._sources.append(sources)
        return sources

    def check_events(self, told: Iterable[Any]) -> None:
        """All that the children told is among what their parent told."""
        given, self._events = self._events, []
        left = Counter(map(repr, given)) - Counter(map(repr, told))
        if left:
            self._referee.fail(
                Invariant.ACCOUNTING,
                f"children told {len(given)} events, of which {left.total()} are lost, such as {next(iter(left))}",
            )

    def check_sources(self, request_id: str, answer: Any) -> None:
        """A hit comes from where a child says that it does."""
        known, self._sources = self._sources, []
        if self._is_on and dict(answer) not in [dict(sources) for sources in known]:
            self._referee.fail(
                Invariant.ACCOUNTING,
                f"request {request_id}: the sources of its hit are {dict(answer)}, but children said {known}",
            )
