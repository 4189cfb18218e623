"""An engine's pool of blocks, as far as pins go."""

from collections import Counter


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
