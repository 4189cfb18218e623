"""What the layers of a KV cache group are, in our words: how much of what came before they read, in which blocks.

It is the one thing of an engine's configuration that depends on the engine's own classes. So a connector that has
to know asks a hook of its own, ``describe_group``, which a connector for another engine replaces.
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
    """Over all workers that share the tokens of a request. Only where a spec says so itself (``dcp_sharded``) is
    it what one of them has of a block: then ``described`` multiplies."""
    window_tokens: int = 0
    """Sliding window: tokens that are read or kept, the computed one among them."""
    page_size_bytes: int = 0
    """One block of one layer on one worker."""
    restart_tokens: int = 0
    """A window that doesn't slide: it begins anew every so many tokens."""
    is_handed_over: bool = False
    """States: the engine hands over each one worth keeping (``handed_states``); else they stay in block tables."""


DescribeGroup = Callable[[Any], GroupDescription]
"""(a group's ``kv_cache_spec``) -> what it is."""


def described(vllm_config: Any, kv_cache_spec: Any, describe: DescribeGroup) -> GroupDescription:
    """What ``describe`` says of a group, with the tokens of a block over all workers.

    Under decode context parallelism a block id stands for a block of each of so many workers, which hold its
    tokens by turns. Layers may be left out of that: then each worker holds all of them.
    """
    found = describe(kv_cache_spec)
    return replace(found, tokens_per_block=found.tokens_per_block * workers_of(vllm_config, kv_cache_spec))


def workers_of(vllm_config: Any, kv_cache_spec: Any) -> int:
    """How many workers have each a part of the tokens of a group's block, as its spec says itself."""
    if not getattr(kv_cache_spec, "dcp_sharded", False):
        return 1
    return int(getattr(vllm_config.parallel_config, "decode_context_parallel_size", 1))


def describe_group(kv_cache_spec: Any) -> GroupDescription:
    """Describe a group whose spec names its ``kind``, as those of our own engines do."""
    kind = getattr(kv_cache_spec, "kind", None)
    if kind is None:
        raise ConfigError(
            f"kv_cache_spec {type(kv_cache_spec).__name__} has no kind: it is no spec of an engine that names "
            "one; for vLLM use the connector class of kv-vllm"
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
