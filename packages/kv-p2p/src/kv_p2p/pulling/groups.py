"""``Group``: what producer and consumer know about a KV cache group.

A *place* is an index in a block table: the number of a block of a request, from the first of its tokens on.

Of a group with a window, only the places in the window of the next token are needed to go on after some tokens. An
engine that has loaded a whole prompt still computes its last token once more, since it samples the first token of
the answer from that. The window of the last token begins one token earlier than that of the answer's first, and so
perhaps one place earlier. Therefore, where groups have windows, a whole prompt is loaded without its last token:
then the next token is the last of the prompt, and holds and loads have every place that it reads.
"""

from dataclasses import dataclass
from math import lcm
from typing import Any

from kv_api import AttentionKind, ConfigError, KVCacheConfig, VllmConfig
from kv_api.groups import DescribeGroup, describe_group


@dataclass(frozen=True)
class Group:
    """Layers that share block tables."""

    block_size: int
    """Tokens of a block."""
    window: int = 0
    """How many tokens are read to compute a token, itself included; 0: all tokens before it."""

    def first_needed(self, tokens: int) -> int:
        """The first place that is read to compute the next token after ``tokens`` tokens."""
        return max(0, tokens - self.window + 1) // self.block_size if self.window else 0


def tokens_to_load(groups: tuple[Group, ...], num_tokens: int) -> int:
    """How many tokens of a whole prompt are loaded: all, or all but the last if there are windows."""
    return num_tokens - any(group.window for group in groups)


def whole_blocks(groups: tuple[Group, ...], num_tokens: int) -> int:
    """How many of these tokens, from the first on, fill whole blocks of every group."""
    return num_tokens - num_tokens % lcm(*(group.block_size for group in groups))


def groups_of(
    vllm_config: VllmConfig, kv_cache_config: KVCacheConfig | None, describe: DescribeGroup = describe_group
) -> tuple[Group, ...]:
    """The groups of an engine; one full-attention group if its configuration names none.

    Raises a ConfigError for groups that can't be transferred.
    """
    if kv_cache_config is None:
        return (Group(vllm_config.cache_config.block_size),)
    groups = kv_cache_config.kv_cache_groups
    if not groups:
        raise ConfigError("kv_cache_config.kv_cache_groups: there is none, so P2PConnector has nothing to pull")
    return tuple(_group_of(place, group.kv_cache_spec, describe) for place, group in enumerate(groups))


def _group_of(place: int, kv_cache_spec: Any, describe: DescribeGroup) -> Group:
    where = f"kv_cache_config.kv_cache_groups[{place}]"
    try:
        described = describe(kv_cache_spec)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from error
    if described.kind not in (AttentionKind.FULL, AttentionKind.SLIDING_WINDOW):
        raise _refused(where, f"of kind {described.kind.value}")
    if described.restart_tokens:
        raise _refused(where, f"a window that begins anew every {described.restart_tokens} tokens")
    return Group(described.tokens_per_block, described.window_tokens)


def _refused(where: str, what: str) -> ConfigError:
    choices = f"{AttentionKind.FULL}, {AttentionKind.SLIDING_WINDOW}"
    return ConfigError(f"{where}: it is {what}, which P2PConnector can't hand over; choices: {choices}")
