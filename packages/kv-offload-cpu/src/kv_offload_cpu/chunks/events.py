"""The events that a mirror of the cache needs."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from kv_api import Medium, OffloadingEvent, OffloadKey


class EventLog:
    """Events since they were last taken. Applied in their order they turn one set of residents into the next."""

    def __init__(self, medium: Medium) -> None:
        self._medium = medium
        self._events: list[OffloadingEvent] = []

    def stored(self, keys: Sequence[OffloadKey]) -> None:
        """Chunks became resident."""
        self._events.append(OffloadingEvent([*keys], self._medium, removed=False))

    def removed(self, keys: Sequence[OffloadKey]) -> None:
        """Residents were removed."""
        self._events.append(OffloadingEvent([*keys], self._medium, removed=True))

    def given_back(self, keys: Sequence[OffloadKey]) -> None:
        """Slots were freed before their chunks were resident: nothing changes for a mirror."""
        self._events.append(OffloadingEvent([*keys], self._medium, removed=True, metadata_only=True))

    def forgotten(self, keys: Sequence[OffloadKey], is_resident: Callable[[OffloadKey], bool]) -> None:
        """Chunks are about to be forgotten, in any state."""
        self.removed([key for key in keys if is_resident(key)])
        self.given_back([key for key in keys if not is_resident(key)])

    def take(self, is_held: Callable[[OffloadKey], bool]) -> list[OffloadingEvent]:
        """The events that name a chunk. A key that was given back is left out if a retry holds it by now."""
        events, self._events = self._events, []
        for index, event in enumerate(events):
            if event.metadata_only:
                events[index] = replace(event, keys=[key for key in event.keys if not is_held(key)])
        return [event for event in events if event.keys]
