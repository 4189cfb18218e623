"""Which request has which GPU blocks: block tables by group, hits, copies on write, with vLLM's rules."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from kv_sim.config import NULL, WorldConfig
from kv_sim.engine.output import BlockCopy
from kv_sim.engine.pool import BlockPool
from kv_sim.engine.request import SimRequest
from kv_sim.engine.tails import Tails


@dataclass
class Tables:
    """The block tables of one request, one for each group; fits ``kv_api.KVCacheBlocks``."""

    groups: tuple[list[int], ...]
    num_cached: list[int] = field(default_factory=list)
    """For each group, how many leading blocks were added to the prefix cache."""

    def get_block_ids(self) -> tuple[list[int], ...]:
        """A copy of the tables, as they are now."""
        return tuple(list(table) for table in self.groups)


class KVCacheManager:
    """Allocates, caches and frees the blocks of requests."""

    def __init__(self, config: WorldConfig) -> None:
        self.config = config
        self._sizes = [config.tokens_of(group) for group in range(len(config.groups))]
        """Tokens of a block of each group."""
        self._never_hit = [
            max(0, group.parts - -(-(group.window - 1) // size)) if group.window else 0
            for group, size in zip(config.groups, self._sizes, strict=True)
        ]
        """How many blocks at the beginning of each ``block_size`` tokens no hit needs: its window begins later."""
        self.block_pool = BlockPool(config.num_blocks, enable_caching=config.prefix_caching, evicts=config.evicts)
        self.tables: dict[str, Tables] = {}
        self.fresh: list[int] = []
        """Blocks that were allocated since the last ``take_fresh``."""
        self._copies: list[BlockCopy] = []
        """Block copies for the step that is being planned. Source and target of each are held until then."""
        self._handed: dict[str, list[tuple[int, int, int]]] = {}
        """States that the planned step hands over, by request: group, block, tokens."""
        self.tails = Tails(config, self.block_pool) if config.has_tails else None
        self._unwritten: set[int] = set()
        """Blocks in the prefix cache that the planned step is yet to write: those of states, and ends of
        prompts."""

    def tables_of(self, request_id: str) -> Tables:
        """The tables of a request; empty ones if it has none."""
        return self.tables.get(request_id) or Tables(tuple([] for _ in self.config.groups))

    def first_needed(self, group: int, tokens: int) -> int:
        """The first block that group ``group`` still needs to compute position ``tokens``."""
        window = self.config.groups[group].window
        return max(0, tokens - window + 1) // self._sizes[group] if window else 0

    def find_hit(self, block_hashes: Sequence[bytes], max_tokens: int) -> tuple[tuple[list[int], ...], int]:
        """The longest prefix that the prefix cache has for every group: its blocks by group, and its tokens."""
        if self.tails is not None:
            return self.tails.find_hit(block_hashes, max_tokens)
        fine_hashes, per_block = block_hashes, self.config.hashes_per_block
        pool, groups = self.block_pool, self.config.groups
        steps = [per_block // spec.parts for spec in groups]
        hashes_of = [fine_hashes[step - 1 :: step] for step in steps]
        length = min(len(fine_hashes) // per_block, max_tokens // self.config.block_size)
        for group, hashes in ((g, hashes_of[g]) for g, spec in enumerate(groups) if not spec.window):
            run, parts = 0, groups[group].parts
            while run < length * parts and pool.find(group, hashes[run]) is not None:
                run += 1
            length = run // parts
        while length and not all(
            self._window_is_cached(group, hashes_of[group], length) for group, s in enumerate(groups) if s.window
        ):
            length -= 1
        tokens = length * self.config.block_size
        tables = []
        for group, hashes in enumerate(hashes_of):
            first = self.first_needed(group, tokens)
            found = [pool.find(group, hashes[index]) for index in range(first, length * groups[group].parts)]
            tables.append([NULL] * first + [block for block in found if block is not None])
        end = self._find_end(fine_hashes, length, max_tokens) if self.config.is_fine else None
        if end is not None:
            block, tokens = end
            tables[0].append(block)
        return tuple(tables), tokens

    def _find_end(self, fine_hashes: Sequence[bytes], blocks: int, max_tokens: int) -> tuple[int, int] | None:
        """The block after the first ``blocks`` in which the longest prefix ends, and the tokens until then."""
        per_block = self.config.hashes_per_block
        size = self.config.block_size // per_block
        last = min((blocks + 1) * per_block - 1, max_tokens // size, len(fine_hashes))
        for count in range(last, blocks * per_block, -1):
            block = self.block_pool.find(0, fine_hashes[count - 1])
            if block is not None:
                return block, count * size
        return None

    def _window_is_cached(self, group: int, block_hashes: Sequence[bytes], length: int) -> bool:
        first = self.first_needed(group, length * self.config.block_size)
        needed = range(first, length * self.config.groups[group].parts)
        return all(self.block_pool.find(group, block_hashes[index]) is not None for index in needed)

    def blocks_to_allocate(
        self, tables: tuple[list[int], ...], total_tokens: int, computed_tokens: int, *, whole: bool = False
    ) -> int:
        """How many more blocks it takes to extend ``tables`` to ``total_tokens``.

        ``whole``: as admission counts a whole prompt; a window has at most its own blocks and a few steps'.
        """
        needed = 0
        for group, (table, spec) in enumerate(zip(tables, self.config.groups, strict=True)):
            size = self._sizes[group]
            wanted = -(-total_tokens // size)
            if whole and spec.window:
                under_way = self.config.max_step_tokens * self.config.max_concurrent_steps
                span = min(spec.window - 1 + under_way, self.config.max_model_len)
                wanted = min(wanted, -(-span // size) + 1)
            needed += max(wanted - max(self.first_needed(group, computed_tokens), len(table)), 0)
        return needed

    def _begin(
        self, request_id: str, hit: tuple[list[int], ...] | None, computed_tokens: int
    ) -> tuple[tuple[list[int], ...], int]:
        """A request's tables, or those it begins with; and how many free blocks the latter take.

        Blocks of a hit that have left the window are not taken. If the hit ends within a block, that block is
        copied. A loaded prompt of one token is matched again, since that token is computed, too; it already has
        its block.
        """
        if hit is None or request_id in self.tables:
            return self.tables_of(request_id).groups, 0
        tables = []
        for group, table in enumerate(hit):
            passed = min(self.first_needed(group, computed_tokens), len(table))
            tables.append([NULL] * passed + table[passed:])
        counts = self.block_pool.ref_counts
        free = sum(1 for table in tables for block in table if block != NULL and not counts[block])
        return tuple(tables), free + self._ends_within(hit, computed_tokens) * len(tables)

    def _ends_within(self, hit: tuple[list[int], ...], computed_tokens: int) -> bool:
        return len(hit[0]) * self._sizes[0] > computed_tokens

    def fits_whole(
        self, request_id: str, total_tokens: int, computed_tokens: int, hit: tuple[list[int], ...] | None
    ) -> bool:
        """Whether all of a request fits now; otherwise it isn't admitted."""
        tables, taken = self._begin(request_id, hit, computed_tokens)
        if any(block in self._unwritten for table in hit or () for block in table):
            return False  # a request can't copy a block that another one writes in the same step
        needed = self.blocks_to_allocate(tables, total_tokens, computed_tokens, whole=True)
        return needed + taken <= self.block_pool.num_free

    def allocate(
        self,
        request_id: str,
        total_tokens: int,
        *,
        computed_tokens: int,
        hit: tuple[list[int], ...] | None = None,
        reserved: int = 0,
    ) -> bool:
        """Give a request room for ``total_tokens``, beginning with the ``hit`` blocks. False: no room."""
        begin, taken = self._begin(request_id, hit, computed_tokens)
        needed = self.blocks_to_allocate(begin, total_tokens, computed_tokens)
        if self.tails is not None:
            needed += self.tails.blocks_to_copy(request_id)
        if needed + taken + reserved > self.block_pool.num_free:
            return False
        if request_id not in self.tables:
            self.tables[request_id] = Tables(
                tuple(list(table) for table in begin), [len(table) for table in begin]
            )
            for table in begin:
                self.block_pool.hold(table)
            if hit is not None and self._ends_within(hit, computed_tokens):
                self._copy_end(self.tables[request_id])
        self._copy_tail(request_id)
        for tokens in (computed_tokens, total_tokens):  # first the loaded tokens, then the computed ones
            for group, table in enumerate(self.tables[request_id].groups):
                more = max(-(-tokens // self._sizes[group]) - len(table), 0)
                nulls = max(self.first_needed(group, computed_tokens) - len(table), 0)
                blocks = self.block_pool.allocate(more - nulls)
                self.fresh += blocks
                table.extend([NULL] * nulls + blocks)
        return True

    def _copy_end(self, tables: Tables) -> None:
        """Replace a request's last blocks, which are shared, by copies of its own."""
        for group, table in enumerate(tables.groups):
            copy = BlockCopy(table[-1], self.block_pool.allocate(1)[0])
            table[-1] = copy.dst_block_id
            tables.num_cached[group] -= 1
            self.fresh.append(copy.dst_block_id)
            self.block_pool.hold([copy.dst_block_id])
            self._copies.append(copy)

    def _copy_tail(self, request_id: str) -> None:
        """Copy the state that the request's next step would overwrite, and hand it over."""
        if self.tails is None or not self.tails.blocks_to_copy(request_id):
            return
        copies, offers = self.tails.copy(request_id, self.tables[request_id].groups)
        self._copies += copies
        self._unwritten.update(copy.dst_block_id for copy in copies)
        self._handed.setdefault(request_id, []).extend(offers)

    def cache_blocks(self, request: SimRequest, tokens: int) -> None:
        """Add the blocks of the first ``tokens`` tokens to the prefix cache."""
        tables, block_hashes = self.tables[request.request_id], request.hashes_up_to(request.num_tokens)
        whole = min(tokens // self.config.block_size, len(block_hashes))
        for group, table in enumerate(tables.groups):
            parts, full = self.config.groups[group].parts, whole * self.config.groups[group].parts
            if self.config.is_unequal:
                block_hashes = request.hashes_in_parts_up_to(request.num_tokens, parts)
            for index in range(tables.num_cached[group], min(full, len(table))):
                if index % parts < self._never_hit[group]:
                    continue
                self.block_pool.cache(group, block_hashes[index], table[index])
                if self.config.groups[group].kind == "state":
                    self._unwritten.add(table[index])
                    self._hand_over(request.request_id, group, table[index], index + 1)
            tables.num_cached[group] = max(tables.num_cached[group], min(full, len(table)))
        if self.config.is_fine:
            self._cache_end(request, tables, tokens)
        if self.tails is not None:
            self._unwritten.update(self.tails.keep(request, tables.groups, tokens))

    def _hand_over(self, request_id: str, group: int, block: int, count: int) -> None:
        if self.config.hands_over_states and block != NULL:
            self._handed.setdefault(request_id, []).append((group, block, count * self.config.block_size))

    def _cache_end(self, request: SimRequest, tables: Tables, tokens: int) -> None:
        """Add a prompt's last block to the prefix cache, by the last hash that an equal prompt could hit."""
        size = self.config.block_size // self.config.hashes_per_block
        count = (request.num_prompt_tokens - 1) // size
        index = count * size // self.config.block_size
        is_within = count % self.config.hashes_per_block != 0
        if is_within and count * size <= tokens and index >= tables.num_cached[0]:
            block = tables.groups[0][index]
            if block not in self.block_pool.key_of:
                self.block_pool.cache(0, request.known_block_hashes[count - 1], block)
                self._unwritten.add(block)

    def drop_passed(self, request_id: str, tokens: int) -> list[int]:
        """Free and return the blocks that have left a window after ``tokens`` processed tokens, the last first."""
        tables, freed = self.tables.get(request_id), []
        for group, table in enumerate(tables.groups if tables else ()):
            for index in range(min(self.first_needed(group, tokens), len(table)) - 1, -1, -1):
                if table[index] == NULL:
                    break
                freed.append(table[index])
                table[index] = NULL
        self.block_pool.free(freed)
        return freed

    def free(self, request_id: str) -> None:
        """Free a request's blocks now, group after group, tails first."""
        for group in self.take(request_id):
            self.block_pool.free(reversed(group))

    def take(self, request_id: str) -> list[list[int]]:
        """Take a request's blocks away without freeing them, by group in the order of the tokens."""
        self._handed.pop(request_id, None)  # another request may get them in the same step
        if self.tails is not None:
            self.tails.forget(request_id)
        tables = self.tables.pop(request_id, None)
        if tables is None:
            return []
        return [[block for block in table if block != NULL] for table in tables.groups]

    def take_fresh(self) -> list[int]:
        """The blocks that were allocated since the last call and are still held."""
        fresh, self.fresh = self.fresh, []
        self._unwritten.clear()
        return list(dict.fromkeys(block for block in fresh if self.block_pool.ref_counts[block]))

    def take_handed(self) -> dict[str, list[tuple[int, int, int]]]:
        """The states that the planned step hands over."""
        handed, self._handed = self._handed, {}
        return handed

    def take_copies(self) -> list[BlockCopy]:
        """The block copies of the planned step. From now on the caller holds source and target of each."""
        copies, self._copies = self._copies, []
        return copies

    def check(self) -> None:
        """Recount: every reference is that of a table (except deferred ones, which the scheduler counts)."""
        self.block_pool.check()
