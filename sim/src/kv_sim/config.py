"""``WorldConfig``: how large and how hostile one world is. Drawn from a seed, or read from a schedule file."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from random import Random
from typing import Any, Final, Literal

from kv_api import ConfigError

BUILTIN_ENGINE = "builtin"
NULL = 0
"""The block of GPU memory that stands for none: for what slid out of a window."""
WORD_BYTES = 8
"""Bytes of a slot: what one layer keeps of one token."""


MOST_ENGINES: Final = 2
BLOCKS_MORE: Final = 7
"""How many the second engine of a world has more than the first."""

Role = Literal["kv_both", "kv_consumer", "kv_producer"]
COUNTERPARTS: Final[Mapping[Role, Role]] = {
    "kv_both": "kv_both",
    "kv_consumer": "kv_producer",
    "kv_producer": "kv_consumer",
}
"""By the role of an engine: that of the one that it serves, or that serves it."""


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
    """All sizes of a world. Small ones on purpose: every boundary is near."""

    engine: str = BUILTIN_ENGINE
    """Who schedules: the testbed's own model of vLLM, or an engine that an installed package offers."""
    num_blocks: int = 24
    """GPU blocks, the null block among them."""
    block_size: int = 4
    hashes_per_block: int = 1
    """More than one: what the GPU has may end within a block. Only in a world with one group of all tokens, or one
    beside states that are handed over. vLLM does it for models with states, whose requests hardly ever end where a
    state was kept."""
    groups: tuple[GroupConfig, ...] = (GroupConfig(),)
    hands_over_states: bool = False
    """The engine tells the connector of each state that it keeps, in the step that computes it."""
    prefix_caching: bool = True
    """Whether the GPU's blocks are found by requests that come later."""
    layers: int = 1
    tp_size: int = 1
    pp_size: int = 1
    max_running: int = 4
    max_step_tokens: int = 16
    run_ahead: int = 0
    """Steps that may be scheduled before the oldest one's output is processed."""
    async_scheduling: bool = False
    """Schedule the next token of a request before the last one is known. Needs run-ahead."""
    runner: Literal[1, 2] = 1
    zero_new_blocks: bool = False
    spec_tokens: int = 0
    role: Role = "kv_both"
    failure_policy: Literal["recompute", "fail"] = "recompute"
    host_slots: int = 64
    """Room of a connector's host memory, in blocks of one worker. A connector learns it from its extra config: as
    ``host_slots``, or as ``cpu_bytes_to_use``, which is what all workers have together."""
    engines: int = 1
    """Two: each serves what the other has computed. The second one has other blocks, and the other role."""
    sessions: bool = False
    """Whether some of the requests that arrive are sessions."""
    trouble: int = 1
    """How much more often than usual copies fail."""
    silent: frozenset[str] = field(default_factory=frozenset)
    """Kinds of actions that this world never takes (swarm testing)."""

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
            return self
        return replace(self, role=COUNTERPARTS[self.role], num_blocks=self.num_blocks + BLOCKS_MORE)

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

    @property
    def block_bytes(self) -> int:
        """Bytes of a block in all layers of a rank."""
        return self.layers * self.page_bytes

    @property
    def host_bytes(self) -> int:
        """Bytes of host memory, of all workers together."""
        return self.host_slots * self.block_bytes * self.world_size

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
        decode_blocks = -(-(1 + self.spec_tokens) // self.block_size)
        return max(0, self.max_model_len - decode_blocks * self.block_size + 1)

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


SWARM = ("abort", "fail", "tear", "lose", "repeat", "restart", "reset", "reset_all", "same_id", "spec", "advance")
"""Kinds of trouble that a world may leave out altogether."""


_ROLES: tuple[Role, ...] = ("kv_both", "kv_both", "kv_both", "kv_both", "kv_both", "kv_consumer", "kv_producer")


def draw_config(random: Random, *, groups: int | None = None) -> WorldConfig:
    """Draw a world. Each feature is absent from many worlds, so that the others get room."""
    num_groups = groups or random.choices([1, 2], [3, 1])[0]
    sliding = tuple(GroupConfig("sliding", random.choice([4, 5, 8, 11])) for _ in range(num_groups - 1))
    run_ahead = random.choices([0, 1, 2, 3], [4, 3, 1, 1])[0]
    silent = frozenset(kind for kind in SWARM if random.random() < 0.5)
    return WorldConfig(
        num_blocks=random.choice([9, 12, 16, 24, 40]) * num_groups,
        block_size=random.choice([2, 4, 4, 8]),
        groups=(GroupConfig(), *sliding),
        layers=random.choice([1, 1, 2]),
        tp_size=random.choices([1, 2], [3, 1])[0],
        pp_size=random.choices([1, 2], [5, 1])[0],
        max_running=random.choice([1, 2, 4, 6]),
        max_step_tokens=random.choice([4, 8, 16, 32]),
        run_ahead=run_ahead,
        async_scheduling=run_ahead > 0 and random.random() < 0.7,
        runner=random.choice([1, 2]),
        zero_new_blocks=random.random() < 0.25,
        spec_tokens=0 if "spec" in silent else random.choice([0, 1, 2]),
        # A producer's blocks are freed at once, also under run-ahead, so it may not load then.
        role=random.choice(_ROLES[:-1] if run_ahead else _ROLES),
        failure_policy=random.choice(["recompute", "fail"]),
        host_slots=random.choice([4, 8, 16, 64]),
        trouble=random.choice([1, 1, 1, 5]),
        silent=silent,
    )


def with_fine_hashes(config: WorldConfig, random: Random) -> WorldConfig:
    """Maybe give the blocks of a world with one group several hashes each."""
    if len(config.groups) > 1 or random.random() < 0.5:
        return config
    return replace(config, hashes_per_block=random.choice([2, config.block_size]))


def _sizes(config: WorldConfig) -> tuple[int, ...]:
    """What says by itself which features came later: so the rest of a history is what it was without them."""
    return config.num_blocks, config.max_running, config.max_step_tokens, config.host_slots, config.runner


def with_states(config: WorldConfig, random: Random) -> WorldConfig:
    """Maybe give a world of several groups one of states, in the place of the last or beside the others.

    A state can't be taken back, so there are no drafts then. About half of these engines hand states over; which,
    their sizes say, so that the rest of a history is the same in both.
    """
    if len(config.groups) == 1 or random.random() < 0.4:
        return config
    kept = random.choice([config.groups[:-1], config.groups])
    return replace(
        config,
        groups=(*kept, STATE),
        hands_over_states=Random(repr(_sizes(config))).random() < 0.5,
        num_blocks=config.num_blocks * (len(kept) + 1) // len(config.groups),
        spec_tokens=0,
    )


def with_sessions(config: WorldConfig) -> WorldConfig:
    """Let sessions come to a third of the worlds; which, their sizes say, so that the others are what they were.

    Not where steps run ahead of the output beside a state: that takes in the token that a session drops.
    """
    drawn = Random(repr(("sessions", _sizes(config)))).random() < 1 / 3
    return replace(config, sessions=drawn and not (STATE in config.groups and config.async_scheduling))


def with_own_cache(config: WorldConfig) -> WorldConfig:
    """Let two of three engines find nothing in their own blocks, and have more; which, their sizes say."""
    if Random(repr(("own cache", _sizes(config)))).random() < 1 / 3:
        return config
    return replace(config, prefix_caching=False, num_blocks=2 * config.num_blocks)


def with_trusted_router(config: WorldConfig) -> WorldConfig:
    """An engine that gives and takes, and that has some room for what is held until somebody comes for it."""
    return replace(config, role="kv_both", num_blocks=max(config.num_blocks, 24 * len(config.groups)))


def with_two_engines(config: WorldConfig) -> WorldConfig:
    """Two that serve each other, or of which one computes prompts for the other; which, their sizes say.

    What a reset takes back is judged where there is one: here it would matter which of them hears of it first.
    A producer's blocks are freed at once, so none is one that writes new blocks while an older step is under way.
    """
    writes_new_blocks = config.zero_new_blocks or config.hashes_per_block > 1
    roles: tuple[Role, ...] = ("kv_both", "kv_producer", "kv_consumer")
    may_be = roles[:1] if config.run_ahead and writes_new_blocks else roles
    role = Random(repr(("roles", _sizes(config)))).choice(may_be)
    return replace(config, engines=2, role=role, silent=config.silent | {"reset_all"})


def with_loads(config: WorldConfig) -> WorldConfig:
    """Let a third of the engines find nothing in their own blocks, so that what comes again is loaded.

    Which, their sizes say. Not those that keep states or ends within blocks, which they do for their own cache.
    """
    is_drawn = Random(repr(("loads", _sizes(config)))).random() < 1 / 3
    if not is_drawn or STATE in config.groups or config.hashes_per_block > 1:
        return config
    return replace(config, prefix_caching=False)


def with_failing_loads(config: WorldConfig) -> WorldConfig:
    """Let loads fail within steps in half of the worlds that find nothing in their own blocks; which, sizes say.

    Where steps run ahead no engine can take back what rests on such a load.
    """
    if config.prefix_caching or Random(repr(("failing loads", _sizes(config)))).random() < 0.5:
        return config
    return replace(config, run_ahead=0, async_scheduling=False, silent=config.silent - {"fail"})


def with_tails(config: WorldConfig) -> WorldConfig:
    """Give more than half of the engines that hand over states finer hashes, and no windows; from sizes, too."""
    random = Random(repr(("tails", _sizes(config))))
    if not config.hands_over_states or random.random() < 0.4:
        return config
    groups = (GroupConfig(), STATE)
    blocks = config.num_blocks * len(groups) // len(config.groups)
    hashes = random.choice([2, config.block_size])
    return replace(config, groups=groups, num_blocks=blocks, hashes_per_block=hashes)
