"""KV cache groups, described independently of the engine: how far back layers read, and the size of blocks.

No other part of an engine's configuration depends on the engine's own classes. So a connector asks a hook of its
own for it, ``describe_group``, which a connector for another engine overrides.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from kv_api.errors import ConfigError
from kv_api.layout import AttentionKind


@dataclass(frozen=True)
class GroupDescription:
    """What the layers of a KV cache group are."""

    kind: AttentionKind
    tokens_per_block: int
    """Tokens of a block, over all workers that share a request's tokens. The spec of a ``dcp_sharded`` group
    gives the tokens of one worker; `described` multiplies them."""
    window_tokens: int = 0
    """Sliding window: how many tokens are read or kept, including the token that is computed."""
    page_size_bytes: int = 0
    """Bytes of one block of one layer on one worker."""
    restart_tokens: int = 0
    """For chunked attention, whose window doesn't slide: the window begins anew after so many tokens. 0: it
    slides."""
    is_handed_over: bool = False
    """Groups of states: whether the engine hands over each state worth keeping (``handed_states``). If not,
    states stay in block tables."""


DescribeGroup = Callable[[Any], GroupDescription]
"""The type of `describe_group`: from a group's ``kv_cache_spec``."""


def described(vllm_config: Any, kv_cache_spec: Any, describe: DescribeGroup) -> GroupDescription:
    """The answer of ``describe`` for a group, with the tokens of a block over all workers.

    Under decode context parallelism a block id stands for one block on each of several workers, which hold its
    tokens by turns. Layers may be exempt from that: then each worker holds all tokens.
    """
    found = describe(kv_cache_spec)
    return replace(found, tokens_per_block=found.tokens_per_block * workers_of(vllm_config, kv_cache_spec))


def workers_of(vllm_config: Any, kv_cache_spec: Any) -> int:
    """How many workers share the tokens of a group's block, according to its spec."""
    if not getattr(kv_cache_spec, "dcp_sharded", False):
        return 1
    return int(getattr(vllm_config.parallel_config, "decode_context_parallel_size", 1))


def describe_group(kv_cache_spec: Any) -> GroupDescription:
    """Describe a group whose spec names its ``kind``, as those of our own engines do."""
    kind = getattr(kv_cache_spec, "kind", None)
    if kind is None:
        raise ConfigError(
            f"kv_cache_spec {type(kv_cache_spec).__name__} has no attribute 'kind', which connectors of this "
            "interface read; inside vLLM use the connector class of kv-vllm"
        )
    if kind not in list(AttentionKind):
        raise ConfigError(f"kv_cache_spec.kind: got {kind!r}; choices: {', '.join(AttentionKind)}")
    window = getattr(kv_cache_spec, "sliding_window", None) or 0
    if kind == AttentionKind.SLIDING_WINDOW and window < 1:
        raise ConfigError(f"kv_cache_spec.sliding_window: expected at least 1 token, got {window}")
    return GroupDescription(
        AttentionKind(kind),
        kv_cache_spec.block_size,
        window if kind == AttentionKind.SLIDING_WINDOW else 0,
        getattr(kv_cache_spec, "page_size_bytes", 0),
        is_handed_over=kind == AttentionKind.STATE_SPACE
        and bool(getattr(kv_cache_spec, "hands_over_states", False)),
    )
