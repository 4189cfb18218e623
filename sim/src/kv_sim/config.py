"""``WorldConfig``: how large and hostile a world is, drawn by ``history.draws`` or read from a schedule file."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, Literal

from kv_api import ConfigError

BUILTIN_ENGINE = "builtin"
NULL = 0
"""The null block: its id stands for no block, for example for one that slid out of a window."""
WORD_BYTES = 8
"""Bytes of a slot: what one layer keeps of one token."""


MOST_ENGINES: Final = 2
BLOCKS_MORE: Final = 7
"""How many more blocks the second engine of a world has than the first."""
MIDDLING_BLOCK: Final = 4
"""Tokens of a block: a stranger with another block size has larger blocks if the engine's are no larger than
this, else smaller ones.
"""

Role = Literal["kv_both", "kv_consumer", "kv_producer"]
Stages = Literal["alike", "more_later", "more_first", "groups_apart"]
Drafter = Literal["text", "model", "eagle", "mtp"]
Stranger = Literal["none", "model", "path", "dtype", "blocks", "ranks"]
COUNTERPARTS: Final[Mapping[Role, Role]] = {
    "kv_both": "kv_both",
    "kv_consumer": "kv_producer",
    "kv_producer": "kv_consumer",
}
"""The role of the other engine of a world, by the role of the first."""


@dataclass(frozen=True)
class GroupConfig:
    """One KV cache group.

    ``window``: how many tokens one of them needs, itself among them; 0: all. Of states it is 2: what the token
    before has left. A state's block holds the state after the last token in it.
    """

    kind: Literal["full", "sliding", "state"] = "full"
    window: int = 0


STATE = GroupConfig("state", 2)


@dataclass(frozen=True)
class WorldConfig:
    """All sizes of a world. They are small on purpose, so that every boundary is near."""

    engine: str = BUILTIN_ENGINE
    """The engine: the testbed's own model of vLLM, or one that an installed package offers."""
    num_blocks: int = 24
    """GPU blocks, the null block among them."""
    block_size: int = 4
    hashes_per_block: int = 1
    """If more than one, a hit in the GPU's prefix cache may end within a block. Only in a world with one group of
    all tokens, or one beside states that are handed over. vLLM does it for models with states, whose requests
    hardly ever end where a state was kept."""
    groups: tuple[GroupConfig, ...] = (GroupConfig(),)
    hands_over_states: bool = False
    """The engine tells the connector of each state that it keeps, in the step that computes it."""
    prefix_caching: bool = True
    """Whether the engine has a prefix cache on the GPU."""
    layers: int = 1
    """Of each group on each rank, where all stages of the pipeline are alike."""
    tp_size: int = 1
    pp_size: int = 1
    stages: Stages = "alike"
    """Which layers the stages have. There may be one more of each group on those after the first, or on the first.
    With several groups every second stage may have every second group and one layer more, and the other stages the
    other groups."""
    max_running: int = 4
    max_step_tokens: int = 16
    run_ahead: int = 0
    """Steps that may be scheduled before the oldest one's output is processed."""
    async_scheduling: bool = False
    """Schedule the next token of a request before the last one is known. Needs run-ahead."""
    runner: Literal[1, 2] = 1
    zero_new_blocks: bool = False
    spec_tokens: int = 0
    """Drafts of a step, for each request."""
    drafter: Drafter = "text"
    """Who drafts: what came before is looked up, or there is a draft model, whose layer is the last of the last
    group that isn't of states (in the engine ``vllm`` alone). Each kind of model has slots for what it drafts
    beyond the tokens of a step. With ``eagle`` and ``mtp`` the engine drops the last block of what it finds; with
    ``mtp`` it marks the group for connectors, which may not find the last token of what they have, either."""
    role: Role = "kv_both"
    failure_policy: Literal["recompute", "fail"] = "recompute"
    host_slots: int = 64
    """Room of a connector's host memory, in blocks of one worker, the one with the largest. A connector learns it
    from its extra config: as ``host_slots``, or as ``cpu_bytes_to_use``, which all workers have together."""
    engines: int = 1
    """Two serve each other what they have computed, or share a store. The second has other blocks, and the other
    role."""
    stranger: Stranger = "none"
    """How the second engine differs, if nothing of it may be found at the first, nor the other way round. It
    serves another ``model``, or one whose ``path`` has the same end. Or it serves the same with another ``dtype``,
    in ``blocks`` of another size, or on another number of ``ranks``. Its bytes are others in any case. Of one
    engine: how that one differs."""
    sessions: bool = False
    """Whether some of the requests that arrive are sessions."""
    images: bool = False
    """Whether some of the prompts that arrive have an image. In the built-in engine alone."""
    pauses: bool = False
    """Whether the engine pauses now and then, and sleeps if its connector withstands that."""
    trouble: int = 1
    """How much more often than usual copies fail."""
    silent: frozenset[str] = field(default_factory=frozenset)
    """Which actions of ``history.draws.SWARM`` never happen in this world (swarm testing)."""

    def __post_init__(self) -> None:
        if self.engines > MOST_ENGINES:
            raise ConfigError(f"engines: at most {MOST_ENGINES}, got {self.engines}")
        if self.block_size % self.hashes_per_block:
            raise ConfigError(
                f"hashes_per_block: got {self.hashes_per_block}, which doesn't divide a block of "
                f"{self.block_size} tokens"
            )
        if self.hashes_per_block > 1 and self.groups != (GroupConfig(),) and not self.has_tails:
            raise ConfigError(
                f"hashes_per_block: got {self.hashes_per_block}; with these groups only 1 is possible"
            )

    def at(self, number: int) -> "WorldConfig":
        """What one of the engines is: the second has some blocks more, so that none stands for another's."""
        if number == 0:
            return self if self.stranger == "none" else replace(self, stranger="none")
        other = replace(self, role=COUNTERPARTS[self.role], num_blocks=self.num_blocks + BLOCKS_MORE)
        if self.stranger == "blocks":
            size = self.block_size * 2 if self.block_size <= MIDDLING_BLOCK else self.block_size // 2
            return replace(other, block_size=size, hashes_per_block=min(self.hashes_per_block, size))
        return replace(other, tp_size=3 - min(self.tp_size, 2)) if self.stranger == "ranks" else other

    @property
    def dtype(self) -> str:
        """The type of the numbers that an engine's model computes with."""
        return "bfloat16" if self.stranger == "dtype" else "float32"

    @property
    def has_tails(self) -> bool:
        """Whether states are kept, and handed over, within blocks."""
        return self.hashes_per_block > 1 and self.hands_over_states and self.groups == (GroupConfig(), STATE)

    @property
    def writes_before_fences(self) -> bool:
        """Whether new blocks are written before ``handle_preemptions``."""
        return self.runner == 2 and (self.zero_new_blocks or self.hashes_per_block > 1)

    @property
    def hit_ends_per_block(self) -> int:
        """At how many of a block's hashes what a connector has may end: at each with tails, else at the last."""
        return self.hashes_per_block if self.has_tails else 1

    @property
    def world_size(self) -> int:
        """How many workers there are."""
        return self.tp_size * self.pp_size

    @property
    def page_bytes(self) -> int:
        """Bytes of a block in one layer."""
        return self.block_size * WORD_BYTES

    def layers_of(self, rank: int) -> tuple[int, ...]:
        """How many layers of each group a rank has."""
        stage, groups = rank // self.tp_size, len(self.groups)
        if self.pp_size == 1 or self.stages == "alike":
            return (self.layers,) * groups
        if self.stages == "groups_apart" and groups > 1:
            more = self.layers + stage % 2
            return tuple(more if (group + stage) % 2 == 0 else 0 for group in range(groups))
        has_more = (stage == 0) == (self.stages == "more_first")
        return (self.layers + has_more,) * groups

    def block_bytes_of(self, rank: int) -> int:
        """Bytes of a block in all layers of a rank: of the group that has the most there."""
        return max(self.layers_of(rank)) * self.page_bytes

    @property
    def most_layers(self) -> int:
        """Layers of a group on the rank that has the most of them."""
        return max(max(self.layers_of(rank)) for rank in range(0, self.world_size, self.tp_size))

    @property
    def host_bytes(self) -> int:
        """Bytes of host memory, of all workers together."""
        return self.host_slots * self.most_layers * self.page_bytes * self.world_size

    @property
    def max_model_len(self) -> int:
        """Tokens of the longest request that the engine accepts: it fits alone, with blocks to copy from.

        Of the two groups of a world with tails each may need one, and the state that is kept has a third.
        """
        spare = 3 if self.has_tails else int(self.hashes_per_block > 1)
        return (self.num_blocks - 1 - spare) // len(self.groups) * self.block_size

    @property
    def longest_request(self) -> int:
        """Tokens that a request may come to, so that it ends however it gets them; no more are ever drawn.

        An engine with drafts admits an asynchronous load only where it leaves room for a step of them. It takes
        requests at its door for which there is none, and they end if nothing of them is loaded so.
        """
        if not self.spec_tokens:
            return self.max_model_len
        decode_blocks = -(-(1 + self.spec_tokens + self.draft_slots) // self.block_size)
        return max(0, self.max_model_len - decode_blocks * self.block_size + 1)

    @property
    def draft_slots(self) -> int:
        """For how many tokens beyond those of a step the engine has room for a draft model's KV."""
        return 0 if self.drafter == "text" else self.spec_tokens

    @property
    def draft_group(self) -> int | None:
        """The group whose last layer is the draft model's."""
        if not self.draft_slots:
            return None
        return max((number for number, group in enumerate(self.groups) if group != STATE), default=None)

    @property
    def marks_drafts(self) -> bool:
        """Whether connectors are told which group is the draft model's."""
        return self.drafter == "mtp" and self.spec_tokens > 0

    @property
    def drops_last_block(self) -> bool:
        """Whether the engine drops the last block of what it finds, for its draft model. A connector may, too."""
        return self.drafter in ("eagle", "mtp") and self.spec_tokens > 0

    @property
    def max_concurrent_steps(self) -> int:
        """How many steps may be under way at once."""
        return self.run_ahead + 1

    def to_json(self) -> dict[str, Any]:
        """Plain values, for a schedule file."""
        return {**asdict(self), "groups": [asdict(g) for g in self.groups], "silent": sorted(self.silent)}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "WorldConfig":
        """The inverse of ``to_json``."""
        groups = tuple(GroupConfig(**group) for group in values["groups"])
        return cls(**{**values, "groups": groups, "silent": frozenset(values["silent"])})
