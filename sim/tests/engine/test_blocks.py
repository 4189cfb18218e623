"""The block pool and the prefix cache against an obvious model."""

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from kv_sim_steps import Steps

from kv_sim.config import NULL, STATE, GroupConfig, WorldConfig
from kv_sim.engine.blocks import KVCacheManager
from kv_sim.engine.pool import BlockPool

operations = st.lists(
    st.one_of(
        st.tuples(st.just("allocate"), st.integers(1, 4)),
        st.tuples(st.just("free"), st.integers(0, 7)),
        st.tuples(st.just("cache"), st.integers(0, 7)),
        st.tuples(st.just("hold"), st.integers(0, 5)),
        st.tuples(st.just("reset"), st.just(0)),
    ),
    max_size=40,
)


@pytest.mark.parametrize(("evicts", "kept"), [(0, [1, 2, 3, 4]), (1, []), (2, [1, 3])])
def test_a_pool_may_lose_what_becomes_free(evicts: int, kept: list[int]) -> None:
    """But not what a request still has."""
    pool = BlockPool(6, evicts=evicts)
    blocks = pool.allocate(4)
    for block in blocks:
        pool.cache(0, bytes([block]), block)
    pool.hold([2])
    pool.free(blocks)
    assert [block for block in blocks if pool.find(0, bytes([block])) == block] == sorted({2, *kept})
    pool.free([2])
    assert [block for block in blocks if pool.find(0, bytes([block])) == block] == kept
    pool.check()


@given(operations)
def test_the_pool_agrees_with_a_list(script: list[tuple[str, int]]) -> None:
    pool = BlockPool(9)
    queue = list(range(1, 9))  # the front is taken first
    held: list[int] = []  # with repetitions
    keys: dict[int, bytes] = {}
    names = 0
    for what, number in script:
        if what == "allocate" and number <= len(queue):
            got = pool.allocate(number)
            assert got == queue[:number]
            del queue[:number]
            for block in got:
                keys.pop(block, None)
            held += got
        elif what == "free" and held:
            block = held.pop(number % len(held))
            pool.free([block])
            if block not in held:
                queue = [*queue, block] if block in keys else [block, *queue]
        elif what == "cache" and held:
            block = held[number % len(held)]
            if block not in keys:
                names += 1
                keys[block] = str(names).encode()
                pool.cache(0, keys[block], block)
        elif what == "hold" and keys:
            block = sorted(keys)[number % len(keys)]
            found = pool.find(0, keys[block])
            assert found == block
            pool.hold([block])
            if block in queue:
                queue.remove(block)
            held.append(block)
        elif what == "reset":
            assert pool.reset() == (not held)
            if not held:
                keys = {}
        pool.check()
        assert list(pool.free_queue) == queue
        assert {block: pool.key_of[block][1] for block in pool.key_of} == keys


def test_several_freed_blocks_keep_their_order() -> None:
    pool = BlockPool(8)
    blocks = pool.allocate(7)
    pool.cache(0, b"a", blocks[0])
    pool.cache(0, b"b", blocks[1])
    assert pool.free([4, 3, 2, 1]) == [4, 3, 2, 1]
    assert list(pool.free_queue) == [4, 3, 2, 1]


def test_freeing_what_nobody_holds_is_a_bug() -> None:
    pool = BlockPool(4)
    with pytest.raises(AssertionError, match="block 2 is freed and nobody holds it"):
        pool.free([2])
    pool.free([NULL])


def manager(window: int, **config: Any) -> KVCacheManager:
    groups = (GroupConfig(), GroupConfig("sliding", window))
    return KVCacheManager(WorldConfig(num_blocks=40, block_size=4, groups=groups, **config))


@given(window=st.integers(1, 13), tokens=st.integers(0, 60))
def test_a_window_needs_what_it_can_still_see(window: int, tokens: int) -> None:
    seen = [position // 4 for position in range(max(0, tokens - window + 1), tokens + 1)]
    assert manager(window).first_needed(1, tokens) == seen[0]
    assert manager(window).first_needed(0, tokens) == 0


@pytest.mark.parametrize(
    ("tokens", "run_ahead", "needed"),
    [(60, 0, 15 + 6), (60, 1, 15 + 10), (60, 3, 15 + 15), (76, 3, 19 + 18), (8, 0, 2 + 2)],
)
def test_of_a_window_as_much_must_fit_as_it_spans_while_steps_add_to_it(
    tokens: int, run_ahead: int, needed: int
) -> None:
    """A block more than four tokens of the window, and sixteen of each step under way."""
    for free, fits in ((needed, True), (needed - 1, False)):
        blocks = manager(5, run_ahead=run_ahead)
        blocks.block_pool.allocate(39 - free)
        assert blocks.fits_whole("r1", tokens, 0, None) is fits


@given(window=st.integers(2, 13), cached=st.sets(st.tuples(st.integers(0, 1), st.integers(0, 7))))
@example(window=13, cached={(0, 0), (0, 1), (0, 2), (1, 0)})
def test_a_hit_is_the_longest_prefix_that_every_group_can_continue(
    window: int, cached: set[tuple[int, int]]
) -> None:
    blocks = manager(window)
    hashes = [bytes([index]) for index in range(8)]
    for group, index in sorted(cached):
        (block,) = blocks.block_pool.allocate(1)
        blocks.block_pool.cache(group, hashes[index], block)

    def can_continue(length: int) -> bool:
        full = all((0, index) in cached for index in range(length))
        first = max(0, length * 4 - window + 1) // 4
        return full and all((1, index) in cached for index in range(first, length))

    longest = max(length for length in range(9) if can_continue(length))
    tables, tokens = blocks.find_hit(hashes, 32)
    assert tokens == longest * 4
    assert [len(table) for table in tables] == [longest, longest]
    assert NULL not in tables[0]
    first = min(blocks.first_needed(1, tokens), longest)
    assert tables[1][:first] == [NULL] * first
    assert NULL not in tables[1][first:]


def test_allocation_is_all_or_nothing() -> None:
    blocks = KVCacheManager(WorldConfig(num_blocks=4, block_size=4))
    assert not blocks.allocate("r", 13, computed_tokens=0)
    assert blocks.tables == {}
    assert blocks.block_pool.num_free == 3
    assert not blocks.allocate("r", 9, computed_tokens=0, reserved=1)
    assert blocks.allocate("r", 9, computed_tokens=0)
    assert blocks.tables_of("r").get_block_ids() == ([1, 2, 3],)
    assert blocks.take_fresh() == [1, 2, 3]
    assert blocks.take("r") == [[1, 2, 3]]
    assert blocks.take("r") == []


def test_who_has_its_block_and_is_matched_anew_needs_no_other() -> None:
    """So it is with a prompt of one token that was loaded, since that token is computed, too."""
    blocks = KVCacheManager(WorldConfig(num_blocks=2, block_size=4))
    assert blocks.allocate("r", 1, computed_tokens=0, hit=([],))
    assert blocks.block_pool.num_free == 0
    assert blocks.fits_whole("r", 1, 0, ([],))
    assert blocks.allocate("r", 1, computed_tokens=0, hit=([],))
    assert blocks.tables_of("r").get_block_ids() == ([1],)


def test_blocks_for_what_is_loaded_come_before_those_for_what_is_computed() -> None:
    """Of all groups: that is the order in which vLLM takes them."""
    blocks = manager(13)
    assert blocks.allocate("r", 16, computed_tokens=8)
    assert blocks.tables_of("r").get_block_ids() == ([1, 2, 5, 6], [3, 4, 7, 8])


def test_blocks_that_nobody_has_any_more_are_not_told_as_new() -> None:
    blocks = KVCacheManager(WorldConfig(num_blocks=9, block_size=4))
    for request_id in ("r1", "r2"):
        assert blocks.allocate(request_id, 8, computed_tokens=0)
    blocks.free("r1")
    assert blocks.take_fresh() == [3, 4]


@pytest.mark.parametrize(("held", "needed"), [(False, 3 + 2), (True, 2)])
def test_blocks_of_a_hit_are_taken_from_the_free_ones_unless_somebody_has_them(held: bool, needed: int) -> None:
    for free in (needed - 1, needed):
        blocks = KVCacheManager(WorldConfig(num_blocks=12, block_size=4))
        hit = (blocks.block_pool.allocate(3),)
        for name, block in zip("abc", hit[0], strict=True):
            blocks.block_pool.cache(0, name.encode(), block)
        blocks.block_pool.allocate(8 - (free if held else free - 3))
        if not held:
            blocks.block_pool.free(hit[0])
        assert blocks.block_pool.num_free == free
        assert blocks.fits_whole("r1", 18, 12, hit) == (free == needed)
        assert blocks.allocate("r1", 18, computed_tokens=12, hit=hit) == (free == needed)
        assert blocks.block_pool.num_free == (0 if free == needed else free)


@pytest.mark.parametrize(("groups", "hands"), [((GroupConfig(),), False), ((GroupConfig(), STATE), True)])
def test_a_hit_that_ends_within_a_block_takes_one_more_of_each_group(
    groups: tuple[GroupConfig, ...], hands: bool
) -> None:
    for free in range(len(groups) + 1):
        blocks = KVCacheManager(
            WorldConfig(num_blocks=9, block_size=8, hashes_per_block=4, groups=groups, hands_over_states=hands)
        )
        hit = tuple(blocks.block_pool.allocate(1) for _ in groups)
        blocks.block_pool.allocate(8 - len(groups) - free)
        fits = free == len(groups)
        assert blocks.fits_whole("r1", 8, 6, hit) == fits
        assert blocks.allocate("r1", 8, computed_tokens=6, hit=hit) == fits
        assert [copy.src_block_id for copy in blocks.take_copies()] == (
            [table[0] for table in hit] if fits else []
        )


@pytest.mark.parametrize("per_block", [2, 4, 8])
def test_a_hit_ends_within_a_block_wherever_that_is_named(per_block: int) -> None:
    size, hashes = 8 // per_block, [bytes([index]) for index in range(2 * per_block)]
    for count in range(1, per_block):
        blocks = KVCacheManager(WorldConfig(num_blocks=9, block_size=8, hashes_per_block=per_block))
        whole, end = blocks.block_pool.allocate(2)
        blocks.block_pool.cache(0, hashes[per_block - 1], whole)
        blocks.block_pool.cache(0, hashes[per_block + count - 1], end)
        for most in range(17):
            tables, tokens = blocks.find_hit(hashes, most)
            reaches = most >= 8 + count * size
            assert tables == ([whole, end] if reaches else [whole] if most >= 8 else [],)
            assert tokens == (8 + count * size if reaches else most // 8 * 8)


def test_what_slid_out_of_a_window_is_freed_once() -> None:
    blocks = manager(5)
    assert blocks.allocate("r1", 20, computed_tokens=0)
    full, window = blocks.tables_of("r1").get_block_ids()
    assert [blocks.drop_passed("r1", tokens) for tokens in (7, 8, 8, 16, 20)] == [
        [],
        window[:1],
        [],
        [window[2], window[1]],
        [window[3]],
    ]
    assert blocks.tables_of("r1").get_block_ids() == (full, [NULL] * 4 + window[4:])


def test_nobody_goes_on_from_a_state_in_the_step_that_copies_it() -> None:
    """Its bytes are there when that step has run."""
    made = Steps(
        num_blocks=40, block_size=8, hashes_per_block=4, groups=(GroupConfig(), STATE), hands_over_states=True
    )
    made.add("r1", 13, 4, shared=13)
    assert made.step() == {"r1": 12}
    made.add("r2", 15, shared=13)
    assert (made.schedule(), made.queues[1]) == ({"r1": 1}, ["r2"])
    ((source, target),) = made.under_way[-1].output.kv_cache_block_copies or ()
    assert source in made.scheduler.blocks.tables["r1"].groups[1]
    made.process()
    assert made.schedule()["r2"] == 2
    copies = made.under_way[-1].output.kv_cache_block_copies or ()
    assert target in [copy.src_block_id for copy in copies]


@pytest.mark.parametrize("per_block", [2, 4, 8])
def test_a_prefix_with_a_state_is_gone_on_from_at_its_last_hash(per_block: int) -> None:
    """Wherever that is: at the first token, at a block's end, or within one after others."""
    size = 8 // per_block
    for tokens in range(2, 30):
        made = Steps(
            num_blocks=40,
            block_size=8,
            hashes_per_block=per_block,
            groups=(GroupConfig(), STATE),
            hands_over_states=True,
            max_step_tokens=32,
        )
        request = made.add("r1", tokens)
        while made.scheduler.requests:
            made.step()
        tables, found = made.scheduler.blocks.find_hit(request.block_hashes, tokens + 1)
        assert found == (tokens - 1) // size * size if tokens % 8 else found == tokens
        blocks = -(-found // 8)
        assert [len(table) for table in tables] == [blocks, blocks]
        assert tables[1][:-1] == [NULL] * (blocks - 1)


def test_blocks_that_are_evicted_are_found_by_nobody_and_stay_whose_they_are() -> None:
    pool = BlockPool(6)
    first, second, third = pool.allocate(3)
    for block, name in ((first, b"a"), (second, b"b")):
        pool.cache(0, name, block)
    pool.evict_blocks({second, third})
    assert [pool.find(0, name) for name in (b"a", b"b")] == [first, None]
    assert [pool.ref_counts[block] for block in (first, second, third)] == [1, 1, 1]
    pool.check()
