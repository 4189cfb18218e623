"""``StepPlan``: what ``schedule`` collects, until it becomes a ``SchedulerOutput`` and work for devices."""

from collections.abc import Callable
from dataclasses import dataclass, field

from kv_sim.config import WorldConfig
from kv_sim.engine.blocks import KVCacheManager, Tables
from kv_sim.engine.output import BlockCopy, CachedRequestData, NewRequestData, SchedulerOutput
from kv_sim.engine.request import SimRequest, Status
from kv_sim.memory.launched import Attention
from kv_sim.memory.settled import Offer


@dataclass
class NewlyRunning:
    """A request that enters the running ones."""

    request: SimRequest
    computed: int
    tables: Tables
    is_resumed: bool
    """Whether it was preempted before. A session that continues counts as new."""


@dataclass
class StepPlan:
    """One step while it is planned."""

    budget: int
    counts: dict[str, int] = field(default_factory=dict)
    """Tokens that each request computes, in order of scheduling."""
    drafts: dict[str, int] = field(default_factory=dict)
    continued: list[SimRequest] = field(default_factory=list)
    admitted: list[NewlyRunning] = field(default_factory=list)
    preempted: list[SimRequest] = field(default_factory=list)
    new_blocks: dict[str, tuple[list[int], ...]] = field(default_factory=dict)
    fresh: list[int] = field(default_factory=list)
    """Blocks that were allocated in this step."""
    copies: list[BlockCopy] = field(default_factory=list)
    ends: list[tuple[int, int]] = field(default_factory=list)
    """For each GPU hit that ended within a block: the tokens in that block, and the connector's tokens."""
    handed: list[Offer] = field(default_factory=list)
    """The ends of prompts within blocks whose states are handed over to the connector."""
    async_targets: list[int] = field(default_factory=list)
    sync_targets: dict[str, list[int]] = field(default_factory=dict)
    has_sync_loads: bool = False
    keeps_room: bool = False
    """Whether a load waits that vLLM may begin, since requests before it need the blocks for their next chunks."""
    has_prefill: bool = False
    """Whether a request that was running is still in its prefill."""
    padded: dict[str, int] = field(default_factory=dict)
    """Requests that begin with one token, and the drafts they are padded with."""
    attentions: list[Attention] = field(default_factory=list)
    rejected: dict[str, int] = field(default_factory=dict)
    sampling: set[str] = field(default_factory=set)

    def run(self, request: SimRequest, count: int) -> None:
        """A running request computes ``count`` tokens."""
        self.continued.append(request)
        self.has_prefill |= request.is_prefill_chunk
        self._count(request, count)
        drafts = request.num_computed_tokens + count - request.num_tokens - request.num_output_placeholders
        if drafts > 0:
            self.drafts[request.request_id] = drafts

    def admit(self, request: SimRequest, computed: int, count: int, tables: Tables) -> None:
        """A waiting request begins to run."""
        is_resumed = request.status is Status.PREEMPTED
        self.admitted.append(NewlyRunning(request, computed, tables, is_resumed))
        self._count(request, count)
        if request.request_id in self.padded:
            self.drafts[request.request_id] = self.padded[request.request_id]

    def preempt(self, request: SimRequest) -> None:
        """A running request lost its blocks. It was the last one, so it wasn't scheduled in this step yet."""
        self.preempted.append(request)

    def load(self, request: SimRequest, targets: list[int], *, is_async: bool) -> None:
        """A load into ``targets`` was announced."""
        if is_async:
            self.async_targets += targets
        else:
            self.sync_targets[request.request_id] = targets

    @property
    def poison(self) -> list[int]:
        """New blocks that are neither loaded nor copied into."""
        targets = {block for blocks in (self.async_targets, *self.sync_targets.values()) for block in blocks}
        targets.update(copy.dst_block_id for copy in self.copies)
        return [block for block in self.fresh if block not in targets]

    def attend(
        self,
        requests: dict[str, SimRequest],
        blocks: KVCacheManager,
        reject_drafts: Callable[[str, int], int],
    ) -> None:
        """Note what the devices will compute and read. Drafts are accepted or rejected here."""
        for request_id, count in self.counts.items():
            request = requests[request_id]
            computed = request.num_computed_tokens
            start = computed - request.num_unseen_rejects
            end = start + count
            hashes = request.hashes
            drafts = self.drafts.get(request_id, 0)
            rejected = reject_drafts(request_id, drafts) if drafts else 0
            if rejected:
                hashes = hashes.copy()
                hashes[end - rejected : end] = request.wrong_draft_hashes(end - rejected, end)
                self.rejected[request_id] = rejected
                request.num_unseen_rejects += rejected
            tables = tuple(tuple(table) for table in blocks.tables[request_id].groups)
            self.attentions.append(Attention(request_id, start, end, tables, hashes))

    def output(self, config: WorldConfig, finished: set[str], preempted: set[str]) -> SchedulerOutput:
        """The step as the connector and the workers see it; runners differ in what is new."""
        resumed = [entry for entry in self.admitted if entry.is_resumed]
        as_new = [entry for entry in self.admitted if not entry.is_resumed]
        if config.runner == 2:
            as_new += resumed
        new = [
            NewRequestData(
                entry.request.request_id,
                entry.request.prompt_token_ids,
                entry.tables.get_block_ids(),
                entry.computed,
                entry.request.mm_features,
            )
            for entry in as_new
        ]
        cached = CachedRequestData()
        for request in self.continued:
            cached.req_ids.append(request.request_id)
            blocks = self.new_blocks[request.request_id]
            cached.new_block_ids.append(tuple(list(b) for b in blocks) if any(blocks) else None)
            cached.num_computed_tokens.append(request.num_computed_tokens)
            cached.num_output_tokens.append(request.num_output_tokens + request.num_output_placeholders)
        for entry in resumed if config.runner == 1 else ():
            cached.req_ids.append(entry.request.request_id)
            cached.resumed_req_ids.add(entry.request.request_id)
            cached.new_block_ids.append(entry.tables.get_block_ids())
            cached.num_computed_tokens.append(entry.computed)
            cached.num_output_tokens.append(entry.request.num_output_tokens)
        zero = [b for b in self.fresh if b not in self.async_targets] if config.zero_new_blocks else None
        return SchedulerOutput(
            scheduled_new_reqs=new,
            scheduled_cached_reqs=cached,
            num_scheduled_tokens=dict(self.counts),
            total_num_scheduled_tokens=sum(self.counts.values()),
            scheduled_spec_decode_tokens={k: [-1] * v for k, v in self.drafts.items()},
            finished_req_ids=finished,
            preempted_req_ids=preempted,
            has_sync_kv_loads=self.has_sync_loads,
            new_block_ids_to_zero=zero or None,
            kv_cache_block_copies=self.copies or None,
        )

    def _count(self, request: SimRequest, count: int) -> None:
        self.counts[request.request_id] = count
        self.budget -= count
