"""The pool of GPU blocks and the prefix cache, with vLLM's rules of order.

A block is free, or held by one or more requests. Free blocks are in a queue: allocation takes from its front,
freed blocks with a cached hash go to its back (last out), those without to its front. A cached block keeps its
hash until it is allocated again. Block 0 is the null block, which replaces blocks that have left a window.

A connector may hold blocks, too: ``blocks``, ``touch`` and ``free_blocks`` are vLLM's names for that.
``evict_blocks`` removes blocks from the prefix cache, and ``free_block_queue`` has the next blocks to be
allocated.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from kv_sim.config import NULL


class FreeBlock(NamedTuple):
    """A free block, as a connector sees it."""

    block_id: int
    block_hash: bytes | None
    """None: it isn't in the prefix cache."""


class FreeBlockQueue:
    """A read-only view of a pool's free blocks."""

    def __init__(self, pool: "BlockPool") -> None:
        self._pool = pool

    def iter_blocks_after(self, cursor: None) -> Iterator[FreeBlock]:
        """All free blocks, the next one to be allocated first."""
        for block in self._pool.free_queue:
            _, block_hash = self._pool.key_of.get(block, (0, None))
            yield FreeBlock(block, block_hash)


class BlockPool:
    """Reference counts, the free queue, and hash -> block for each group."""

    def __init__(self, num_gpu_blocks: int, *, enable_caching: bool = True, evicts: int = 0) -> None:
        self.num_gpu_blocks = num_gpu_blocks
        self.enable_caching = enable_caching
        self._evicts = evicts
        self.ref_counts = [0] * num_gpu_blocks
        self.free_queue: OrderedDict[int, None] = OrderedDict.fromkeys(range(1, num_gpu_blocks))
        self.free_block_queue = FreeBlockQueue(self)
        self.touched: Counter[int] = Counter()
        """How often a connector holds each block."""
        self.key_of: dict[int, tuple[int, bytes]] = {}
        self.cached: dict[tuple[int, bytes], list[int]] = {}

    @property
    def num_free(self) -> int:
        """How many blocks could be allocated."""
        return len(self.free_queue)

    def allocate(self, count: int) -> list[int]:
        """Take the first ``count`` free blocks out of the queue and of the prefix cache."""
        assert count <= self.num_free, f"asked for {count} of {self.num_free} free blocks"
        blocks = [self.free_queue.popitem(last=False)[0] for _ in range(count)]
        for block in blocks:
            self.uncache(block)
            self.ref_counts[block] = 1
        return blocks

    def hold(self, blocks: Iterable[int]) -> None:
        """Add a reference to cached blocks."""
        for block in blocks:
            if block != NULL:
                if self.ref_counts[block] == 0:
                    del self.free_queue[block]
                self.ref_counts[block] += 1

    def free(self, blocks: Iterable[int]) -> list[int]:
        """Drop a reference to each; returns those that became free."""
        freed = []
        for block in blocks:
            if block == NULL:
                continue
            assert self.ref_counts[block] > 0, f"block {block} is freed and nobody holds it"
            self.ref_counts[block] -= 1
            if self.ref_counts[block] == 0:
                freed.append(block)
        for block in freed:
            if self._evicts and not block % self._evicts:
                self.uncache(block)
        front = [block for block in freed if block not in self.key_of]
        for block in freed:
            self.free_queue[block] = None
        for block in reversed(front):
            self.free_queue.move_to_end(block, last=False)
        return freed

    @property
    def blocks(self) -> range:
        """The blocks by id: here a block is its id."""
        return range(self.num_gpu_blocks)

    def touch(self, blocks: Iterable[int]) -> None:
        """Let a connector hold these blocks."""
        blocks = list(blocks)
        self.touched.update(blocks)
        self.hold(blocks)

    def free_blocks(self, blocks: Iterable[int]) -> None:
        """A connector releases these blocks."""
        blocks = list(blocks)
        self.touched.subtract(blocks)
        self.touched += Counter()
        self.free(blocks)

    def cache(self, group: int, block_hash: bytes, block: int) -> None:
        """Enter ``block`` into the prefix cache under its hash, in place of the hash of a partial block."""
        key = (group, block_hash)
        if self.enable_caching and block != NULL and self.key_of.get(block) != key:
            self.uncache(block)
            self.key_of[block] = key
            self.cached.setdefault(key, []).append(block)

    def uncache(self, block: int) -> None:
        """Remove ``block`` from the prefix cache."""
        key = self.key_of.pop(block, None)
        if key is not None:
            blocks = self.cached[key]
            blocks.remove(block)
            if not blocks:
                del self.cached[key]

    def evict_blocks(self, block_ids: set[int]) -> None:
        """Remove these blocks from the prefix cache."""
        for block in sorted(block_ids):
            self.uncache(block)

    def move_name(self, source: int, target: int) -> None:
        """If ``source`` is in the prefix cache, put ``target`` there in its place."""
        key = self.key_of.get(source)
        if key is not None:
            self.uncache(source)
            self.cache(*key, target)

    def find(self, group: int, block_hash: bytes) -> int | None:
        """A cached block with this hash."""
        blocks = self.cached.get((group, block_hash))
        return blocks[0] if blocks else None

    def reset(self) -> bool:
        """Forget all hashes; refused while any block is held."""
        if any(self.ref_counts):
            return False
        self.cached.clear()
        self.key_of.clear()
        return True

    def check(self) -> None:
        """Recount."""
        held = sum(1 for count in self.ref_counts[1:] if count)
        total = self.num_gpu_blocks - 1
        assert held + self.num_free == total, f"held {held} + free {self.num_free} != {total}"
        assert all(self.ref_counts[block] == 0 for block in self.free_queue), "a free block is held"
        listed = sum(len(blocks) for blocks in self.cached.values())
        assert listed == len(self.key_of), f"{listed} cached blocks, {len(self.key_of)} keys"
