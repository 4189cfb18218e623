"""``WorldConfig``: how large and hostile a world is, drawn by ``history.draws`` or read from a schedule file."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from math import gcd, lcm
from typing import Any, Final, Literal

from kv_api import ConfigError

BUILTIN_ENGINE = "builtin"
NULL = 0
"""The null block: its id stands for no block, for example for one that has left a window."""
WORD_BYTES = 8
"""Bytes of a slot: one layer's KV of one token."""


MOST_ENGINES: Final = 2
BLOCKS_MORE: Final = 7
"""How many more blocks the second engine of a world has than the first."""
MIDDLING_BLOCK: Final = 4
"""A stranger with another block size has larger blocks if the engine's have at most this many tokens, otherwise
smaller ones.
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

    ``window``: how many tokens a token attends to, itself included; 0: all. For states it is 2: the token and the
    state before it. A state's block holds the state after its last token. ``parts``: into how many blocks of this
    group the world's ``block_size`` tokens are divided. All have the same bytes.
    """

    kind: Literal["full", "sliding", "state"] = "full"
    window: int = 0
    parts: int = 1


STATE = GroupConfig("state", 2)


@dataclass(frozen=True)
class WorldConfig:
    """All sizes of a world. They are small on purpose, so that every boundary is near."""

    engine: str = BUILTIN_ENGINE
    """The engine: the testbed's own model of vLLM, or one that an installed package offers."""
    num_blocks: int = 24
    """GPU blocks, the null block included."""
    block_size: int = 4
    """Tokens of a block; if groups have blocks of several sizes, of the largest, of which those of the others are
    parts. Hits end at a multiple of it."""
    hashes_per_block: int = 1
    """If more than one, a hit in the GPU's prefix cache may end within a block. Only in a world with one group of
    all tokens, or one beside states that are handed over. vLLM does it for models with states, whose requests
    hardly ever end where a state was kept. If groups have blocks of several sizes, it is as many as the largest
    common part of these needs, and hits end with the largest block all the same."""
    groups: tuple[GroupConfig, ...] = (GroupConfig(),)
    hands_over_states: bool = False
    """The engine hands each kept state over to the connector, in the step that computes it."""
    prefix_caching: bool = True
    """Whether the engine has a prefix cache on the GPU."""
    evicts: int = 0
    """Of the blocks that become free, those whose number it divides leave the prefix cache at once, as if other
    requests had come and gone: with 1 all, with 2 every second, with 0 none. Only in the built-in engine."""
    layers: int = 1
    """Layers of each group on each rank, if all pipeline stages are alike."""
    tp_size: int = 1
    pp_size: int = 1
    stages: Stages = "alike"
    """How the stages differ in layers: those after the first, or the first, may have one layer more of each group.
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
    """Draft tokens of each request in a step."""
    drafter: Drafter = "text"
    """The source of drafts: ``text``, earlier tokens (ngrams), or a draft model, whose layer is the last of the
    last group that isn't of states (only in the engine ``vllm``). A draft model has slots for tokens beyond those
    of a step. With ``eagle`` and ``mtp`` the engine drops the last block of a hit; with ``mtp`` it marks the group
    for connectors, whose hits must not include the last token, either."""
    role: Role = "kv_both"
    failure_policy: Literal["recompute", "fail"] = "recompute"
    host_slots: int = 64
    """The size of a connector's host memory, in blocks of the worker with the largest blocks. Its extra config has
    it as ``host_slots``, and as ``cpu_bytes_to_use``, over all workers."""
    engines: int = 1
    """Two engines serve each other, or share a store. The second has more blocks, and the other role."""
    stranger: Stranger = "none"
    """How the second engine differs if it is a stranger: neither engine may find the other's chunks. It serves
    another ``model``, or one whose ``path`` has the same last part, or the same model with another ``dtype``, in
    ``blocks`` of another size, or on another number of ``ranks``. In any case its bytes differ. In the
    configuration of one engine (``at``): how that one differs."""
    sessions: bool = False
    """Whether some requests are sessions."""
    images: bool = False
    """Whether some prompts have an image. Only in the built-in engine."""
    pauses: bool = False
    """Whether the engine pauses now and then, and sleeps if its connector claims ``sleep``."""
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
        self._check_parts()
        if self.is_fine and self.groups != (GroupConfig(),) and not self.has_tails:
            raise ConfigError(
                f"hashes_per_block: got {self.hashes_per_block}; with these groups only 1 is possible"
            )

    def _check_parts(self) -> None:
        for place, group in enumerate(self.groups):
            if group.parts < 1 or self.block_size % group.parts or (group.kind == "state" and group.parts > 1):
                raise ConfigError(
                    f"groups[{place}].parts: got {group.parts}; expected 1 for states, otherwise a number that "
                    f"divides a block of {self.block_size} tokens"
                )
        parts = [group.parts for group in self.groups]
        if parts and gcd(*parts) > 1:
            raise ConfigError(f"groups: got parts {parts}; expected one group without, or none that all share")
        if self.is_unequal and self.hashes_per_block != lcm(*parts):
            raise ConfigError(
                f"groups: blocks of several sizes (parts {parts}) need hashes_per_block {lcm(*parts)}, "
                f"got {self.hashes_per_block}"
            )

    def at(self, number: int) -> "WorldConfig":
        """The configuration of one engine: the second has more blocks, so that block numbers differ."""
        if number == 0:
            return self if self.stranger == "none" else replace(self, stranger="none")
        other = replace(self, role=COUNTERPARTS[self.role], num_blocks=self.num_blocks + BLOCKS_MORE)
        if self.stranger == "blocks":
            size = self.block_size * 2 if self.block_size <= MIDDLING_BLOCK else self.block_size // 2
            return replace(other, block_size=size, hashes_per_block=min(self.hashes_per_block, size))
        return replace(other, tp_size=3 - min(self.tp_size, 2)) if self.stranger == "ranks" else other

    @property
    def dtype(self) -> str:
        """The data type of an engine's model."""
        return "bfloat16" if self.stranger == "dtype" else "float32"

    @cached_property
    def is_unequal(self) -> bool:
        """Whether groups have blocks of several sizes."""
        return any(group.parts > 1 for group in self.groups)

    @cached_property
    def is_fine(self) -> bool:
        """Whether a hit may end within a block."""
        return self.hashes_per_block > 1 and not self.is_unequal

    def tokens_of(self, group: int) -> int:
        """Tokens of a block of a group."""
        return self.block_size // self.groups[group].parts

    @cached_property
    def blocks_per_span(self) -> int:
        """How many blocks of all groups together ``block_size`` tokens take."""
        return sum(group.parts for group in self.groups)

    @cached_property
    def has_tails(self) -> bool:
        """Whether states are kept, and handed over, within blocks."""
        return self.hashes_per_block > 1 and self.hands_over_states and self.groups == (GroupConfig(), STATE)

    @cached_property
    def writes_before_fences(self) -> bool:
        """Whether new blocks are written before ``handle_preemptions``."""
        return self.runner == 2 and (self.zero_new_blocks or self.is_fine)

    @property
    def hit_ends_per_block(self) -> int:
        """At how many of a block's hashes a connector's hit may end: with tails at each, otherwise at one."""
        return self.hashes_per_block if self.has_tails else 1

    @cached_property
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
        """Bytes of a block in all layers of a rank, for the group with the most layers there."""
        return max(self.layers_of(rank)) * self.page_bytes

    @cached_property
    def most_layers(self) -> int:
        """Layers of a group on the rank that has the most of them."""
        return max(max(self.layers_of(rank)) for rank in range(0, self.world_size, self.tp_size))

    @property
    def host_bytes(self) -> int:
        """Bytes of host memory, of all workers together."""
        return self.host_slots * self.most_layers * self.page_bytes * self.world_size

    @cached_property
    def max_model_len(self) -> int:
        """Tokens of the longest request that the engine accepts: it fits alone, with blocks to copy from.

        In a world with tails each of the two groups may need one, and the kept state a third.
        """
        spare = 3 if self.has_tails else int(self.is_fine)
        return (self.num_blocks - 1 - spare) // self.blocks_per_span * self.block_size

    @cached_property
    def longest_request(self) -> int:
        """The most tokens of a request that always ends, whether they are computed or loaded; no more are drawn.

        An engine with drafts admits an asynchronous load only if there is room for a step of drafts. It accepts
        requests without that room, which end only if they don't load asynchronously.
        """
        if not self.spec_tokens:
            return self.max_model_len
        decode_blocks = -(-(1 + self.spec_tokens + self.draft_slots) // self.block_size)
        return max(0, self.max_model_len - decode_blocks * self.block_size + 1)

    @property
    def draft_slots(self) -> int:
        """For how many tokens beyond a step's the engine has slots for a draft model's KV."""
        return 0 if self.drafter == "text" else self.spec_tokens

    @property
    def draft_group(self) -> int | None:
        """The group whose last layer is the draft model's."""
        if not self.draft_slots:
            return None
        return max((number for number, group in enumerate(self.groups) if group != STATE), default=None)

    @property
    def marks_drafts(self) -> bool:
        """Whether the configuration for connectors marks the draft model's group."""
        return self.drafter == "mtp" and self.spec_tokens > 0

    @property
    def proof_tokens(self) -> int:
        """How many tokens after a hit must be stored, too: a block of a draft model's group that is marked."""
        return self.tokens_of(self.draft_group) if self.marks_drafts and self.draft_group is not None else 0

    @property
    def drops_last_block(self) -> bool:
        """Whether the engine drops the last block of a hit, for its draft model. A connector may do so, too."""
        return self.drafter in ("eagle", "mtp") and self.spec_tokens > 0

    @cached_property
    def max_concurrent_steps(self) -> int:
        """How many steps may be in flight at once."""
        return self.run_ahead + 1

    def to_json(self) -> dict[str, Any]:
        """Plain values, for a schedule file."""
        return {**asdict(self), "groups": [asdict(g) for g in self.groups], "silent": sorted(self.silent)}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "WorldConfig":
        """The inverse of ``to_json``."""
        groups = tuple(GroupConfig(**group) for group in values["groups"])
        return cls(**{**values, "groups": groups, "silent": frozenset(values["silent"])})
