"""The parts of an engine's scheduler and workers that worlds, checkers and logs use, for any engine.

The testbed's own classes have more, which only the builtin engine uses. Another engine is wrapped in classes with
these members, so a type checker reports a checker that uses more.
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
        """Remove these blocks from the prefix cache."""
        ...

    def reset(self) -> bool:
        """Forget all hashes; refused while any block is held."""
        ...


class SeenBlocks(Protocol):
    """The block tables of requests."""

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
    """A scheduler's visible part: its requests and their blocks."""

    @property
    def connector(self) -> Any:
        """The guard around its side of the connector."""
        ...

    @property
    def requests(self) -> Mapping[str, SimRequest]:
        """All requests that it knows, by id."""
        ...

    @property
    def holding(self) -> Collection[SimRequest]:
        """Waiting requests that hold blocks."""
        ...

    @property
    def deferred_frees(self) -> Sized:
        """Blocks to free when the steps in flight have come back."""
        ...

    @property
    def blocks(self) -> SeenBlocks:
        """The block tables of requests."""
        ...


class SeenOutcome(Protocol):
    """The visible part of the processing of ends."""

    @property
    def ended(self) -> Sequence[SimRequest]:
        """Requests that have ended, in that order."""
        ...


class SeenWorker(Protocol):
    """The visible part of a rank's worker."""

    @property
    def connector(self) -> Any:
        """The guard around its side of the connector."""
        ...

    @property
    def handshake(self) -> KVConnectorHandshakeMetadata | None:
        """This rank's handshake metadata for other engines, if any."""
        ...

    def execute(self, step: Step) -> KVConnectorOutput:
        """Run the hooks of a step and launch its kernels; returns the connector's report."""
        ...

    def sleep(self) -> None:
        """Free the rank's GPU memory."""
        ...

    def wake(self) -> None:
        """Allocate the rank's GPU memory again, at the same addresses."""
        ...
