"""Facts about an engine's blocks: how many tokens one block hash covers, and how many bytes a block takes.

An engine's configuration gives them in several places, any of which may be missing; the place nearest to the
cache wins. What a block hash covers besides tokens stands in no configuration, so a connector asks a hook of its
own, ``hash_extras``.
"""

from collections.abc import Callable, Sequence
from math import gcd
from typing import Any, TypeAlias

from kv_api.engine import Request
from kv_api.errors import ConfigError

HashExtras: TypeAlias = Callable[[Request, range], tuple[Any, ...] | None]
"""The type of `hash_extras`: ``(request, tokens of one hash) -> what else the hash covers``."""


def tokens_per_hash(vllm_config: Any, kv_cache_config: Any, block_sizes: Sequence[int]) -> int:
    """Tokens that one block hash of a request covers. ``block_sizes``: tokens of a block of each group.

    Where the engine doesn't say it, this is the greatest common divisor of ``block_sizes``.
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
    """Bytes that one block id takes on one worker, over all tensors.

    Tensors that have a ``block_stride`` all lie in one allocation, and the ``size`` of each is that of the whole
    allocation. Without tensors the groups share the memory, so the largest of ``bytes_of_groups`` (a block in all
    layers of a group) counts.
    """
    tensors = getattr(kv_cache_config, "kv_cache_tensors", None)
    if tensors and kv_cache_config.num_blocks:
        one_allocation = hasattr(tensors[0], "block_stride")
        total = int(tensors[0].size if one_allocation else sum(tensor.size for tensor in tensors))
        return total // int(kv_cache_config.num_blocks)
    return max(bytes_of_groups)


def hash_extras(request: Request, tokens: range) -> tuple[Any, ...] | None:
    """What the hash of ``tokens`` covers besides tokens: an entry of an event's ``extra_keys``.

    In this order: the name of the request's adapter; each image (or other multimodal input) that overlaps
    ``tokens``, with its offset from the first of them; the request's salt, if ``tokens`` begins the prompt. None:
    none of these.
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
