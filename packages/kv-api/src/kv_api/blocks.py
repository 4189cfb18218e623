"""What an engine's blocks are: how many tokens one hash of a request stands for, and what one block takes.

Engines say it in several places, of which any may be missing: what is nearest to the cache counts. What a block's
hash covers beside tokens no engine says at all: a connector asks a hook of its own for it, ``hash_extras``.
"""

from collections.abc import Callable, Sequence
from math import gcd
from typing import Any, TypeAlias

from kv_api.engine import Request
from kv_api.errors import ConfigError

HashExtras: TypeAlias = Callable[[Request, range], tuple[Any, ...] | None]
"""Says of some tokens of a request, which have one hash, what `hash_extras` does."""


def tokens_per_hash(vllm_config: Any, kv_cache_config: Any, block_sizes: Sequence[int]) -> int:
    """Tokens that one block hash of a request covers. ``block_sizes``: tokens of a block of each group.

    Where nothing is said of it, it is as many as all sizes have in common.
    """
    size = getattr(kv_cache_config, "hash_block_size", None)
    size = size or getattr(vllm_config.cache_config, "hash_block_size", None)
    tokens: int = size or gcd(*block_sizes)
    for of_group in block_sizes:
        if of_group % tokens:
            raise ConfigError(
                f"kv_cache_config.hash_block_size: got {tokens}, which doesn't divide a group's block of "
                f"{of_group} tokens"
            )
    return tokens


def bytes_per_block(kv_cache_config: Any, bytes_of_groups: Sequence[int]) -> int:
    """What one block id stands for on one worker, in all tensors together.

    Where tensors have strides, all of them lie in one allocation, and each says the size of that. Where there are
    none, groups share what there is, and the largest of ``bytes_of_groups`` (a block in all layers of a group)
    says it.
    """
    tensors = getattr(kv_cache_config, "kv_cache_tensors", None)
    if tensors and kv_cache_config.num_blocks:
        one_allocation = hasattr(tensors[0], "block_stride")
        total = int(tensors[0].size if one_allocation else sum(tensor.size for tensor in tensors))
        return total // int(kv_cache_config.num_blocks)
    return max(bytes_of_groups)


def hash_extras(request: Request, tokens: range) -> tuple[Any, ...] | None:
    """What the hash of ``tokens`` covers beside them and all before them: an entry of an event's ``extra_keys``.

    The name of the request's adapter; each of its images and the like of which a token is among them, with the
    place at which that begins, counted from the first of them; and its salt where it begins. None: nothing.
    """
    adapter, salt = request.lora_request, request.cache_salt
    found: list[Any] = [adapter.lora_name] if adapter is not None else []
    for image in getattr(request, "mm_features", None) or ():
        offset, length = image.mm_position.offset, image.mm_position.length
        if offset < tokens.stop and offset + length > tokens.start:
            found.append((image.identifier, offset - tokens.start))
    if salt and tokens.start == 0:
        found.append(salt)
    return tuple(found) or None
