"""A planned step: as the connector sees it (``SchedulerOutput``), and as the workers execute it (``Step``)."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from kv_api import KVConnectorMetadata, KVConnectorOutput
from kv_sim.memory.launched import Attention, ContentProblem
from kv_sim.memory.settled import Offer


@dataclass
class NewRequestData:
    """A request that runs for the first time (with runner V2 also one that resumes)."""

    req_id: str
    prompt_token_ids: Sequence[int]
    block_ids: tuple[list[int], ...]
    num_computed_tokens: int
    mm_features: Sequence[Any] = ()
    """The images of its prompt."""


@dataclass
class CachedRequestData:
    """Requests that ran before, as parallel lists."""

    req_ids: list[str] = field(default_factory=list)
    resumed_req_ids: set[str] = field(default_factory=set)
    new_block_ids: list[tuple[list[int], ...] | None] = field(default_factory=list)
    num_computed_tokens: list[int] = field(default_factory=list)
    num_output_tokens: list[int] = field(default_factory=list)


class BlockCopy(NamedTuple):
    """A copy from block to block, before the step computes anything; vLLM's field names."""

    src_block_id: int
    dst_block_id: int


@dataclass(frozen=True)
class BlockState:
    """The states that a step hands over to a connector; vLLM's field names."""

    boundary_state_offloads: dict[str, list[tuple[int, int, int]]]
    """By request: group, block, and the number of tokens after which its state is."""


@dataclass
class SchedulerOutput:
    """One step; fits ``kv_api.SchedulerOutput``."""

    scheduled_new_reqs: list[NewRequestData]
    scheduled_cached_reqs: CachedRequestData
    num_scheduled_tokens: dict[str, int]
    total_num_scheduled_tokens: int
    scheduled_spec_decode_tokens: dict[str, list[int]]
    finished_req_ids: set[str]
    preempted_req_ids: set[str]
    has_sync_kv_loads: bool = False
    new_block_ids_to_zero: list[int] | None = None
    kv_cache_block_copies: list[BlockCopy] | None = None
    kv_connector_metadata: KVConnectorMetadata | None = None
    kv_connector_block_state: BlockState | None = None


@dataclass
class Step:
    """A step in flight: its plan, the work of the devices, and the workers' reports."""

    number: int
    output: SchedulerOutput
    attentions: list[Attention]
    poison: list[int]
    """New blocks that no load is announced for."""
    load_targets: list[int]
    """New blocks that a load of this step, in it or asynchronous, will fill."""
    sync_targets: dict[str, list[int]]
    """By request, the blocks that its load within the step fills."""
    rejected: dict[str, int]
    """Drafts of each request that the model rejects."""
    sampling: set[str]
    """Requests that sample a token in this step."""
    ends: list[tuple[int, int]] = field(default_factory=list)
    """For each hit on the GPU that ended within a block: its tokens in that block, and those of the connector's
    hit."""
    handed: list[Offer] = field(default_factory=list)
    """The ends of prompts within blocks that the step hands over, with the states after them."""
    late_states: dict[int, int] = field(default_factory=dict)
    """Blocks of states that a load within the step fills, and where each is copied before that."""
    keeps_room: bool = False
    """Whether a load waits that vLLM may begin, since requests before it need the blocks for their next chunks."""
    packed: bytes | None = None
    """Its metadata, pickled for workers in other processes."""
    reports: dict[int, KVConnectorOutput] = field(default_factory=dict)
    """The report of each rank's worker."""
    problems: list[ContentProblem] = field(default_factory=list)
    """Wrong bytes that kernels of this step read; forgiven if the load that left them is reported as failed."""

    def load_states_late(self, states: dict[int, int]) -> None:
        """Loads within the step fill states that were copied before. They may fill the copies, too."""
        self.late_states = states
        copies = set(states.values())
        self.load_targets += [block for block in self.poison if block in copies]
        self.poison = [block for block in self.poison if block not in copies]

    @property
    def new_blocks(self) -> list[int]:
        """All blocks allocated for the step, however they are filled."""
        copies = getattr(self.output, "kv_cache_block_copies", None) or ()  # an old vLLM's has none
        return [*self.poison, *self.load_targets, *(copy.dst_block_id for copy in copies)]
