"""What the two sides of a connector send each other: opaque to the engine, which only carries it."""

from abc import ABC, abstractmethod


class KVConnectorMetadata(ABC):  # noqa: B024 - a marker: the engine never looks inside
    """Scheduler -> workers, once a step. Must survive pickling."""


class KVConnectorHandshakeMetadata(ABC):  # noqa: B024 - a marker: the engine never looks inside
    """Worker -> scheduler, once at start: what a peer needs to connect. Must survive pickling."""


class KVConnectorWorkerMetadata(ABC):
    """Worker -> scheduler, once a step. The engine joins those of all workers into one."""

    @abstractmethod
    def aggregate(self, other: "KVConnectorWorkerMetadata") -> "KVConnectorWorkerMetadata":
        """Join with what another worker of the same step sent; it may change and return ``self``."""
