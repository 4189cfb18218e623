"""Pins on GPU blocks: references in the engine's own pool, which keep a block until a store has read it.

The pool is the engine's, which hands it over at start (``bind_gpu_block_pool``). It has vLLM's attributes:
``blocks`` by id, ``touch`` adds a reference to each of some blocks, ``free_blocks`` takes one away. The engine
counts what is pinned as in use: it waits instead of preempting (``has_pending_block_frees``), and refuses to
reset its prefix cache meanwhile.

**Invariant** (``check``): exactly the blocks of jobs whose end is still to be reported are pinned.
"""

from collections.abc import Collection, Sequence
from typing import Any, Protocol, TypeGuard

from kv_api import BlockPool, KVError


class PinningPool(Protocol):
    """A pool whose blocks can be pinned."""

    @property
    def blocks(self) -> Sequence[Any]: ...
    def touch(self, blocks: Sequence[Any]) -> None: ...
    def free_blocks(self, ordered_blocks: Sequence[Any]) -> None: ...


def is_pinning(pool: BlockPool) -> TypeGuard[PinningPool]:
    """Whether the blocks of a pool can be pinned.

    ``isinstance`` would look into the ``__dict__`` of the engine's object, from Python 3.12 on. Its attributes
    would be kept there ever after, where reading one takes longer, and an engine reads some for each block.
    """
    return all(hasattr(pool, name) for name in ("blocks", "touch", "free_blocks"))


class Pins:
    """Pinned blocks by job."""

    def __init__(self) -> None:
        self._pool: PinningPool | None = None
        self._blocks_of: dict[int, list[Any]] = {}

    def bind(self, pool: BlockPool) -> None:
        """Take the engine's pool. It is ignored if its blocks can't be pinned."""
        self._pool = pool if is_pinning(pool) else None

    @property
    def can_pin(self) -> bool:
        """Whether the engine has handed over a pool whose blocks can be pinned."""
        return self._pool is not None

    def pin(self, job_id: int, block_ids: Sequence[int]) -> None:
        """Pin these blocks until the job has ended."""
        if self._pool is None:
            raise KVError(
                f"blocks {[*block_ids]} can't be pinned: the engine has bound no block pool that can pin "
                "(bind_gpu_block_pool)"
            )
        blocks = [self._pool.blocks[block] for block in block_ids]
        self._pool.touch(blocks)
        self._blocks_of[job_id] = blocks

    def unpin(self, job_id: int) -> None:
        """The job has ended; it may have pinned nothing."""
        blocks = self._blocks_of.pop(job_id, None)
        if blocks is not None and self._pool is not None:
            self._pool.free_blocks(blocks)

    def unpin_all(self) -> None:
        """Unpin everything, since this side was switched off and gets no reports any more."""
        for job_id in [*self._blocks_of]:
            self.unpin(job_id)

    def check(self, awaited: Collection[int]) -> None:
        """Recount. ``awaited`` are the jobs whose end is still to be reported."""
        left = sorted(self._blocks_of.keys() - {*awaited})
        assert not left, f"jobs {left} have ended, and their blocks are pinned"
