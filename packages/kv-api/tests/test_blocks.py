"""What an engine's blocks are, from what it says and where it says nothing."""

from types import SimpleNamespace
from typing import Any

import pytest

from kv_api import ConfigError
from kv_api.blocks import bytes_per_block, hash_extras, tokens_per_hash


def engine(**of_cache: Any) -> Any:
    return SimpleNamespace(cache_config=SimpleNamespace(**of_cache))


@pytest.mark.parametrize(
    ("of_caches", "of_config", "block_sizes", "tokens"),
    [
        ({"hash_block_size": 2}, {"hash_block_size": 4}, [8, 16], 2),
        ({"hash_block_size": None}, {"hash_block_size": 4}, [8, 16], 4),
        ({}, {"hash_block_size": 4}, [8, 16], 4),
        ({}, {"hash_block_size": None}, [8, 12], 4),
        ({}, {}, [16], 16),
        ({"hash_block_size": 8}, {}, [8, 16], 8),
    ],
)
def test_what_is_nearest_to_the_cache_says_what_a_hash_covers(
    of_caches: Any, of_config: Any, block_sizes: list[int], tokens: int
) -> None:
    assert tokens_per_hash(engine(**of_config), SimpleNamespace(**of_caches), block_sizes) == tokens


@pytest.mark.parametrize("sizes", [[16, 12], [12, 16], [12]])
def test_a_hash_that_ends_within_a_block_is_refused(sizes: list[int]) -> None:
    with pytest.raises(ConfigError) as refused:
        tokens_per_hash(engine(), SimpleNamespace(hash_block_size=8), sizes)
    assert str(refused.value) == (
        "kv_cache_config.hash_block_size: got 8, which doesn't divide a group's block of 12 tokens"
    )


def tensors(*sizes: int, **more: Any) -> Any:
    return [SimpleNamespace(size=size, **more) for size in sizes]


@pytest.mark.parametrize(
    ("cache", "num_bytes"),
    [
        ({"num_blocks": 4, "kv_cache_tensors": tensors(400, 80)}, 120),
        ({"num_blocks": 4, "kv_cache_tensors": tensors(400, 400, block_stride=100)}, 100),
        ({"num_blocks": 4, "kv_cache_tensors": tensors(400, block_stride=100)}, 100),
        ({"num_blocks": 4, "kv_cache_tensors": []}, 60),
        ({"num_blocks": 0, "kv_cache_tensors": tensors(400)}, 60),
        ({"num_blocks": 4}, 60),
    ],
)
def test_what_a_block_takes(cache: Any, num_bytes: int) -> None:
    """Tensors by themselves; one allocation, whose size each says; the largest group where there are none."""
    found = bytes_per_block(SimpleNamespace(**cache), [20, 60, 40])
    assert (found, type(found)) == (num_bytes, int)


@pytest.mark.parametrize(
    ("adapter", "salt", "first", "later"),
    [
        (None, None, None, None),
        (None, "", None, None),
        (None, "s", ("s",), None),
        ("a", None, ("a",), ("a",)),
        ("a", "s", ("a", "s"), ("a",)),
    ],
)
def test_what_a_hash_covers_beside_tokens(adapter: Any, salt: Any, first: Any, later: Any) -> None:
    """The adapter in each block, and the salt in the first one, which all others are chained to."""
    lora = SimpleNamespace(lora_name=adapter) if adapter else None
    request: Any = SimpleNamespace(lora_request=lora, cache_salt=salt)
    assert [hash_extras(request, range(start, start + 4)) for start in (0, 4)] == [first, later]


def test_a_hash_covers_the_images_that_its_tokens_stand_for() -> None:
    """Each with where it begins, counted from the first of them; between the adapter and the salt, as in vLLM."""
    places = {"i": (1, 1), "j": (3, 2), "k": (8, 4)}
    images = [
        SimpleNamespace(identifier=name, mm_position=SimpleNamespace(offset=offset, length=length))
        for name, (offset, length) in places.items()
    ]
    request: Any = SimpleNamespace(lora_request=None, cache_salt=None, mm_features=images)
    covered = [hash_extras(request, range(start, start + 4)) for start in (0, 4, 8, 12)]
    assert covered == [(("i", 1), ("j", 3)), (("j", -1),), (("k", 0),), None]
    request.lora_request, request.cache_salt = SimpleNamespace(lora_name="a"), "s"
    assert hash_extras(request, range(2)) == ("a", ("i", 1), "s")
