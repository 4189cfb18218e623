"""What worlds, checkers and logs see of an engine, whosever it is: of its scheduler and its workers.

The testbed's own have more, which only the builtin engine uses. Another engine shows its own as these, so a type
checker sees when a checker begins to ask for something that it doesn't show.
"""

from collections.abc import Collection, Mapping, Sequence, Sized
from typing import Any, Protocol

from kv_api import KVConnectorHandshakeMetadata, KVConnectorOutput
from kv_sim.engine.blocks import Tables
from kv_sim.engine.output import Step
from kv_sim.engine.request import SimRequest


class SeenPool(Protocol):
    """The pool of GPU blocks."""

    @property
    def ref_counts(self) -> Sequence[int]:
        """How often each block is held."""
        ...

    def evict_blocks(self, block_ids: set[int]) -> None:
        """Let nobody find these any more."""
        ...

    def reset(self) -> bool:
        """Forget all hashes; refused while any block is held."""
        ...


class SeenBlocks(Protocol):
    """Who has which GPU blocks."""

    @property
    def block_pool(self) -> SeenPool:
        """The pool that has all of them."""
        ...

    @property
    def tables(self) -> Mapping[str, Tables]:
        """The block tables of all requests that have blocks."""
        ...

    def tables_of(self, request_id: str) -> Tables:
        """The tables of a request; empty ones if it has none."""
        ...


class SeenScheduler(Protocol):
    """What is seen of a scheduler: its requests and their blocks."""

    @property
    def connector(self) -> Any:
        """What its side of the connector is called through."""
        ...

    @property
    def requests(self) -> Mapping[str, SimRequest]:
        """All that it has not forgotten, by id."""
        ...

    @property
    def holding(self) -> Collection[SimRequest]:
        """Waiting requests that hold blocks."""
        ...

    @property
    def deferred_frees(self) -> Sized:
        """Blocks that are freed when the steps under way have come back."""
        ...

    @property
    def blocks(self) -> SeenBlocks:
        """Which requests have which GPU blocks."""
        ...


class SeenOutcome(Protocol):
    """What is seen of the ends of requests."""

    @property
    def ended(self) -> Sequence[SimRequest]:
        """Those that have ended, in that order."""
        ...


class SeenWorker(Protocol):
    """What is seen of the worker of a rank."""

    @property
    def connector(self) -> Any:
        """What its side of the connector is called through."""
        ...

    @property
    def handshake(self) -> KVConnectorHandshakeMetadata | None:
        """What other engines have to know of this rank, if anything."""
        ...

    def execute(self, step: Step) -> KVConnectorOutput:
        """Run the hooks of a step and launch its kernels; returns what the connector reports."""
        ...

    def sleep(self) -> None:
        """Let go of the rank's GPU memory."""
        ...

    def wake(self) -> None:
        """The rank's GPU memory is there again, where it was."""
        ...
