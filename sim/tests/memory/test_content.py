"""What a slot must hold: the same everywhere, and another for any other prefix, layer, group or rank."""

import numpy as np

from kv_sim.memory.content import (
    Image,
    layer_keys,
    mix,
    mix_words,
    prefix_hashes,
    root_hash,
    sampled_token,
    whole_story,
)


def test_it_tells_layer_group_and_rank() -> None:
    keys = [layer_keys(rank, (2, 0, 3)) for rank in range(3)]
    assert all([len(group) for group in each] == [2, 0, 3] for each in keys)
    assert all(group.dtype == np.uint64 for each in keys for group in each)
    assert len({int(key) for each in keys for group in each for key in group}) == 15


def test_it_is_the_same_everywhere_and_for_ever() -> None:
    """Or a seed, or a history that was kept, would no longer show what it did. The first is splitmix64's own."""
    assert mix(0x9E3779B97F4A7C15) == 0xE220A8397B1DCDAF
    values = [0, 1, 0x9E3779B97F4A7C15, (1 << 64) - 1]
    assert mix_words(np.array(values, dtype=np.uint64)).tolist() == [mix(value) for value in values]
    assert (root_hash(None, None), root_hash("s", "a")) == (0xBC716AC86A3B732F, 0x614E89E85F587375)
    assert prefix_hashes(1, [0, 7]) == [0x910A2DEC89025CC1, 0x3381D1ECDC901D]
    assert sampled_token(0x3381D1ECDC901D) == 13725
    assert [int(key) for group in layer_keys(2, (1, 1)) for key in group] == [
        0x776B54026F85F921,
        0xBE5E2A8CAE02194A,
    ]


def test_an_image_makes_all_from_its_token_on_another_and_no_token_of_the_prompt() -> None:
    plain = whole_story(1, (5, 6, 7), 4)
    stories = [whole_story(1, (5, 6, 7), 4, Image(name, 1)) for name in ("i", "j")]
    for tokens, hashes in stories:
        assert (tokens[:3], hashes[:1]) == (plain[0][:3], plain[1][:1])
    after = [hashes[1:] for _, hashes in (plain, *stories)]
    assert all(len({*values}) == 3 for values in zip(*after, strict=True))
    last = whole_story(1, (5, 6, 7), 4, Image("i", 2))
    assert (last[0][:3], last[1][:2]) == (plain[0][:3], plain[1][:2]) and last[1][2] != plain[1][2]
    assert whole_story(1, (5, 6, 7), 4, Image("i", 3)) == plain, "beyond the prompt there is none"


def test_it_is_a_function_of_all_that_came_before() -> None:
    roots = [root_hash(salt, adapter) for salt in (None, "a", "b") for adapter in (None, "a", "b")]
    stories = [(root, tokens) for root in roots for tokens in ((1, 2, 3), (1, 3, 3), (2, 2, 3))]
    last = [prefix_hashes(root, tokens)[-1] for root, tokens in stories]
    assert len(set(roots)) == 9
    assert len(set(last)) == len(last)
    for prompt, length in (((1, 2, 3), 0), ((1, 2, 3), 3), ((5,), 6)):
        tokens, hashes = whole_story(roots[1], prompt, length)
        assert len(tokens) == len(hashes) == max(len(prompt), length)
        assert tokens[: len(prompt)] == prompt
        assert list(hashes) == prefix_hashes(roots[1], tokens)
        sampled = [sampled_token(before) for before in hashes[len(prompt) - 1 : -1]]
        assert list(tokens[len(prompt) :]) == sampled
