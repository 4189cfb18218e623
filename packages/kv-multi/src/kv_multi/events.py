"""The workers' KV events, kept by child.

An engine joins the containers of its workers by ``add_events(other.get_all_events())`` and ``increment_workers``,
so only a list of events travels between two containers. Ours is a list that remembers which child each event is
from (``EventsByChild``). Each child's events stay in the container that the child made, and its scheduler side
gets that container.
"""

from collections.abc import Mapping

from kv_api import KVCacheEvent, KVConnectorKVEvents


class EventsByChild(list[KVCacheEvent]):
    """All events of some containers, in the order of the children, with the containers they are from."""

    def __init__(self, containers: Mapping[str, KVConnectorKVEvents]) -> None:
        super().__init__(event for container in containers.values() for event in container.get_all_events())
        self.containers = dict(containers)


class MultiKVConnectorKVEvents(KVConnectorKVEvents):
    """A container for each child that has events.

    ``_joined``: the children whose events were added since the last ``increment_workers``. Only their containers
    count another worker: a child's event is common if every worker that has a container for the child saw it.
    """

    def __init__(self, containers: Mapping[str, KVConnectorKVEvents]) -> None:
        self.containers = dict(containers)
        self._num_workers = 1
        self._joined: list[str] = []

    def add_events(self, events: list[KVCacheEvent]) -> None:
        if not isinstance(events, EventsByChild):
            raise TypeError(
                "events: expected a MultiKVConnectorKVEvents, got a plain list, which doesn't say which child "
                "each event is from"
            )
        for name, container in events.containers.items():
            mine = self.containers.get(name)
            if mine is None:
                self.containers[name] = container
                continue
            if not isinstance(container, type(mine)):
                raise TypeError(
                    f"events of connector {name!r}: can't add {type(container).__name__} to {type(mine).__name__}"
                )
            mine.add_events(container.get_all_events())
            self._joined.append(name)

    def aggregate(self) -> "MultiKVConnectorKVEvents":
        self.containers = {name: container.aggregate() for name, container in self.containers.items()}
        return self

    def increment_workers(self, count: int = 1) -> None:
        self._num_workers += count
        for name in self._joined:
            self.containers[name].increment_workers(count)
        self._joined = []

    def get_all_events(self) -> list[KVCacheEvent]:
        return EventsByChild(self.containers)

    def get_number_of_workers(self) -> int:
        return self._num_workers

    def clear_events(self) -> None:
        for container in self.containers.values():
            container.clear_events()

    def check(self) -> None:
        """Recount: no child has the events of more workers than there are."""
        for name, container in self.containers.items():
            workers = container.get_number_of_workers()
            assert workers <= self._num_workers, f"{name}: {workers} workers of {self._num_workers}"
