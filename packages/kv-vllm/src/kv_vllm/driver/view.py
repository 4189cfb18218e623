"""vLLM's scheduler, with what worlds, checkers and logs read of the testbed's (``SchedulerView``)."""

from collections import Counter
from dataclasses import dataclass
from typing import Any

from kv_sim.engine.blocks import Tables
from kv_sim.engine.request import SimRequest
from kv_vllm.driver.ledger import Ledger


class PoolView:
    """vLLM's block pool."""

    def __init__(self, manager: Any) -> None:
        self._manager = manager

    @property
    def ref_counts(self) -> list[int]:
        """The reference count of each block. vLLM keeps none for the null block."""
        return [0 if block.is_null else block.ref_cnt for block in self._manager.block_pool.blocks]

    def evict_blocks(self, block_ids: set[int]) -> None:
        """Remove these blocks' hashes, so that no request finds them."""
        self._manager.block_pool.evict_blocks(block_ids)

    def reset(self) -> bool:
        """Forget all hashes; refused while any block is in use."""
        return bool(self._manager.reset_prefix_cache())


class BlocksView:
    """vLLM's cache manager."""

    def __init__(self, vllm: Any) -> None:
        self._vllm = vllm
        self.block_pool = PoolView(vllm.kv_cache_manager)

    @property
    def tables(self) -> dict[str, Tables]:
        """The block tables of all requests that have blocks."""
        tables = {name: self.tables_of(name) for name in self._vllm.requests}
        return {name: table for name, table in tables.items() if any(table.groups)}

    def tables_of(self, request_id: str) -> Tables:
        """The tables of a request; empty ones if it has none."""
        return Tables(tuple(list(ids) for ids in self._vllm.kv_cache_manager.get_block_ids(request_id)))


@dataclass
class Ended:
    """What checkers read of the testbed's ``Outcome``."""

    ledger: Ledger

    @property
    def ended(self) -> list[SimRequest]:
        """Requests that ended, for the books."""
        return self.ledger.ended


class SchedulerView:
    """vLLM's scheduler under the testbed's names. Connectors never get it."""

    def __init__(self, vllm: Any, ledger: Ledger, connector: Any) -> None:
        self._vllm = vllm
        self._ledger = ledger
        self.connector = connector
        self.blocks = BlocksView(vllm)

    @property
    def requests(self) -> dict[str, SimRequest]:
        """All requests that vLLM knows."""
        return {name: self._ledger.twins[name] for name in self._vllm.requests}

    @property
    def holding(self) -> list[SimRequest]:
        """Waiting requests that hold blocks."""
        return [self._ledger.twins[request.request_id] for request in self._vllm.kv_holding_waiting]

    @property
    def deferred_frees(self) -> Any:
        """Blocks that are freed when the steps in flight were processed."""
        return self._vllm.deferred_frees

    @property
    def num_steps(self) -> int:
        """How many steps were scheduled."""
        return self._ledger.step

    def check(self) -> None:
        """Recount: every reference to a block is in a table or waits to be freed."""
        held: Counter[int] = Counter()
        for tables in self.blocks.tables.values():
            held.update(block for table in tables.groups for block in table if block)
        for _, blocks in self._vllm.deferred_frees:
            held.update(block.block_id for block in blocks if not block.is_null)
        counts = {block: count for block, count in enumerate(self.blocks.block_pool.ref_counts) if count}
        assert counts == dict(held), f"references {counts} != tables and deferred frees {dict(held)}"
        twins, requests = list(self._ledger.twins), list(self._vllm.requests)
        assert sorted(twins) == sorted(requests), f"twins {twins} != requests {requests}"
