"""An engine's pool of blocks, as far as pins go."""

from collections import Counter
from types import SimpleNamespace


class Pool:
    """Counts who is held."""

    num_gpu_blocks = 64

    def __init__(self):
        self.blocks = [f"block {number}" for number in range(64)]
        self.held = Counter()

    def touch(self, blocks):
        self.held.update(blocks)

    def free_blocks(self, blocks):
        self.held.subtract([*blocks])
        self.held += Counter()


class QueueingPool(Pool):
    """Says which blocks it gives away next: ``next`` lists them, and ``hashed`` has those that are found."""

    def __init__(self, num_gpu_blocks=64):
        super().__init__()
        self.num_gpu_blocks = num_gpu_blocks
        self.next = []
        self.hashed = set(range(1000))
        self.looks = 0
        self.free_block_queue = self

    def iter_blocks_after(self, cursor):
        assert cursor is None
        self.looks += 1
        for block in self.next:
            yield SimpleNamespace(block_id=block, block_hash=b"h" if block in self.hashed else None)
