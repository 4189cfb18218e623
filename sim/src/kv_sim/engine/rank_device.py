"""``RankDevice``: the part of a rank's device that an engine and its workers use.

The testbed's ``Device`` has more, for worlds and connectors. A device without memory has only this part, so a type
checker reports an engine that uses more.
"""

from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Protocol

from kv_sim.memory.copy import Copy
from kv_sim.memory.kv_cache import KVCache
from kv_sim.memory.launched import LaunchedStep
from kv_sim.memory.settled import Offer
from kv_sim.memory.shadow import Shadow


class RankCopies(Protocol):
    """The part of a rank's copies that an engine uses."""

    @property
    def running(self) -> Mapping[int, Copy]:
        """The copies that have not ended, by id."""
        ...

    @property
    def waited(self) -> list[Copy]:
        """The copies for which the worker has waited since this was cleared."""
        ...

    def check(self) -> None:
        """Recount the copies."""
        ...


class RankDevice(Protocol):
    """The device of one rank."""

    @property
    def rank(self) -> int:
        """The rank whose device it is."""
        ...

    @property
    def shadow(self) -> Shadow:
        """The rights of requests and copies to blocks."""
        ...

    @property
    def copies(self) -> RankCopies:
        """The connectors' copies."""
        ...

    @property
    def queue(self) -> deque[LaunchedStep]:
        """Steps that were launched and have not retired."""
        ...

    def kv_cache(self, layer: int) -> KVCache:
        """The pages of a layer, for a connector."""
        ...

    def sleep(self) -> None:
        """Free the GPU memory; its contents are lost."""
        ...

    def wake(self) -> None:
        """Allocate the GPU memory again."""
        ...

    def begin_step(self, new_blocks: Iterable[int], handed: Iterable[Offer]) -> None:
        """The worker begins a step that gets new blocks, and that hands over the states of prompts' ends."""
        ...

    def take_over(self, blocks: Iterable[int]) -> None:
        """A step uses these blocks from now on."""
        ...

    def zero(self, blocks: list[int], step: int) -> None:
        """Zero newly allocated blocks."""
        ...

    def copy_blocks(self, copies: Sequence[tuple[int, int]], step: int) -> None:
        """Copy blocks (from, to)."""
        ...

    def poison(self, blocks: Iterable[int]) -> None:
        """Make the bytes of newly allocated blocks recognizable."""
        ...

    def read_loaded(self, step: LaunchedStep, blocks: Collection[int], group: int, layer: int) -> None:
        """A layer of the forward pass reads what the step itself loads into these blocks."""
        ...

    def prepare(self, step: LaunchedStep) -> None:
        """A step is about to be launched: it copies states to the blocks in which their requests go on."""
        ...

    def launch(self, step: LaunchedStep) -> None:
        """Queue a step behind those launched before."""
        ...

    def retire(self) -> object:
        """Run the oldest launched step."""
        ...
