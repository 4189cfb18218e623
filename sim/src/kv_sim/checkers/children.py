"""ACCOUNTING for a connector with children: it passes on their events, and the sources of their hits.

Such a connector has the attribute ``sub_connectors`` on its scheduler's side. The children's answers to their
parent are recorded here, and compared with the parent's answers to the engine. If a child may be switched off,
nothing is compared, since the parent may drop that child's last answer.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from kv_api import KVConnectorBase_V1
from kv_sim.violation import Invariant, Referee


class Children:
    """Answers of the children of one connector since the parent's last answer."""

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
        """The parent's events include all events of its children."""
        given, self._events = self._events, []
        left = Counter(map(repr, given)) - Counter(map(repr, told))
        if left:
            self._referee.fail(
                Invariant.ACCOUNTING,
                f"take_events of the children returned {len(given)} events, but their parent's lacks "
                f"{left.total()} of them, such as {next(iter(left))}",
            )

    def check_sources(self, request_id: str, answer: Any) -> None:
        """The parent's sources of a hit are those of a child."""
        known, self._sources = self._sources, []
        if self._is_on and dict(answer) not in [dict(sources) for sources in known]:
            self._referee.fail(
                Invariant.ACCOUNTING,
                f"request {request_id}: get_external_cache_hit_sources answered {dict(answer)}, but the "
                f"children answered {known}",
            )
