"""States (Mamba) that an engine keeps at boundaries within blocks, as vLLM does if hashes are finer than blocks.

A request's steps end at the last hash of its prompt, and where other requests were seen to share its tokens. There
its block of states has the state of this *boundary*, and is cached under the boundary's hash. The request's next
step would overwrite that state. So it first copies the block into another one, which takes over the hash, is in no
block table, and is handed over to the connector. A request that ends in between caches its own block.

A request that continues from such a boundary also needs, of every other group, the block with the last tokens
before it. That block still grows, so the request gets a copy of it.
"""

from collections.abc import Sequence

from kv_sim.config import NULL, WorldConfig
from kv_sim.engine.output import BlockCopy
from kv_sim.engine.pool import BlockPool
from kv_sim.engine.request import SimRequest

Groups = tuple[list[int], ...]


class Tails:
    """The states within blocks of one engine."""

    def __init__(self, config: WorldConfig, pool: BlockPool) -> None:
        self._config = config
        self._pool = pool
        self._tokens_per_hash = config.block_size // config.hashes_per_block
        self._states = [group for group, spec in enumerate(config.groups) if spec.kind == "state"]
        self._kept: dict[str, int] = {}
        """Request -> the boundary of the state in its last block, which its next step would overwrite."""

    def boundaries(self, request: SimRequest) -> list[int]:
        """Where steps of a prompt end within blocks: at its last hash, and at the end of its shared part."""
        size, per_hash = self._config.block_size, self._tokens_per_hash
        last = request.num_prompt_tokens - 1
        ends = {min(tokens, last) // per_hash * per_hash for tokens in (last, request.spec.shared_tokens)}
        return sorted(end for end in ends if end % size)

    def cut(self, request: SimRequest, start: int, count: int) -> int:
        """How many of ``count`` tokens from ``start`` on are computed in one step."""
        return min([count, *(end - start for end in self.boundaries(request) if start < end)])

    # -- hits ----------------------------------------------------------------------------------

    def find_hit(self, hashes: Sequence[bytes], max_tokens: int) -> tuple[Groups, int]:
        """The longest prefix from which every group can continue: its blocks by group, and its tokens."""
        size, per_hash = self._config.block_size, self._tokens_per_hash
        for tokens in range(min(max_tokens // per_hash, len(hashes)) * per_hash, 0, -per_hash):
            names = {end: hashes[end // per_hash - 1] for end in (*range(size, tokens, size), tokens)}
            tables = []
            for group in range(len(self._config.groups)):
                if group in self._states:
                    found = [self._pool.find(group, names[tokens])]
                    passed = [NULL] * (len(names) - 1)
                else:
                    found, passed = [self._pool.find(group, name) for name in names.values()], []
                tables.append([*passed, *(block for block in found if block is not None)])
            if all(len(table) == len(names) for table in tables):
                return tuple(tables), tokens
        return tuple([] for _ in self._config.groups), 0

    # -- keeping -------------------------------------------------------------------------------

    def keep(self, request: SimRequest, tables: Groups, tokens: int) -> list[int]:
        """The next step ends after ``tokens``. At a boundary, enter its states into the prefix cache.

        Returns their blocks.
        """
        if tokens not in self.boundaries(request):
            return []
        blocks = [tables[group][tokens // self._config.block_size] for group in self._states]
        for group, block in zip(self._states, blocks, strict=True):
            name = request.known_block_hashes[tokens // self._tokens_per_hash - 1]
            self._pool.cache(group, name, block)
        self._kept[request.request_id] = tokens
        return blocks

    def blocks_to_copy(self, request_id: str) -> int:
        """How many blocks the next step of a request needs for copies of states that it would overwrite."""
        return len(self._states) if request_id in self._kept else 0

    def copy(self, request_id: str, tables: Groups) -> tuple[list[BlockCopy], list[tuple[int, int, int]]]:
        """Copy the states that a request's next step would overwrite. Returns copies and handed-over states.

        Each handed-over state has its group, the block that has it now, and the boundary.
        """
        boundary = self._kept.pop(request_id)
        copies, offers = [], []
        for group in self._states:
            source = tables[group][boundary // self._config.block_size]
            (target,) = self._pool.allocate(1)
            self._pool.move_name(source, target)
            self._pool.hold([source])
            copies.append(BlockCopy(source, target))
            offers.append((group, target, boundary))
        return copies, offers

    def forget(self, request_id: str) -> None:
        """Forget a request that has no blocks any more."""
        self._kept.pop(request_id, None)

    def end(self, request: SimRequest, tables: Groups) -> list[tuple[int, int, int]]:
        """The states that an ending request hands over, unless a step has overwritten them; as in ``copy``."""
        boundary = self._kept.pop(request.request_id, None)
        if boundary is None or request.num_in_flight_tokens or request.num_computed_tokens != boundary:
            return []
        index = boundary // self._config.block_size
        return [(group, tables[group][index], boundary) for group in self._states]
