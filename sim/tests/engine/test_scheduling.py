"""Who computes how many tokens in a step, who waits, and what room a load leaves to others."""

from typing import Any

import pytest
from kv_sim_steps import Steps

from kv_sim.config import GroupConfig
from kv_sim.engine.request import Status

TWO = (GroupConfig(), GroupConfig("sliding", 8))


# -- who begins as a decode ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "config", "others", "has", "counts"),
    [
        # One token is left after a hit: it and its drafts.
        (0, {}, None, 8, {"r1": 1}),
        (1, {}, None, 8, {"r1": 2}),
        (2, {}, None, 8, {"r1": 3}),
        (2, {}, None, 7, {"r1": 2}),  # two tokens are left
        (2, {}, None, 4, {"r1": 5}),
        # It has to end before the longest request does, which has 12 tokens.
        (2, {"num_blocks": 4}, None, 8, {"r1": 3}),
        (3, {"num_blocks": 4}, None, 8, {"r1": 1}),
        # It fits into the step, or it waits.
        (2, {"max_step_tokens": 3}, None, 8, {"r1": 3}),
        (2, {"max_step_tokens": 2}, None, 8, {}),
        # Beside one that decodes, and beside one that is in its prefill.
        (2, {}, "decode", 8, {"r0": 3, "r1": 3}),
        (2, {"max_step_tokens": 5}, "decode", 8, {"r0": 3}),
        (2, {"max_step_tokens": 6}, "prefill", 8, {"r0": 4, "r1": 1}),
    ],
)
def test_who_begins_with_one_token_has_drafts(
    spec: int, config: dict[str, Any], others: str | None, has: int, counts: dict[str, int]
) -> None:
    made = Steps(spec_tokens=spec, **config)
    if others:
        made.add("r0", {"decode": 5, "prefill": made.config.max_step_tokens + 4}[others], 8)
        made.step()
    made.connector.has["r1"] = (has, False)
    made.add("r1", 9, 3)
    assert made.schedule() == counts
    assert made.drafts == {name: spec for name, count in counts.items() if spec and count == 1 + spec}
    assert made.queues[1] == ([] if "r1" in counts else ["r1"])


@pytest.mark.parametrize(("others", "count"), [(None, 1), ("decode", 3), ("prefill", 1)])
def test_a_prompt_of_one_token_has_them_only_beside_others(others: str | None, count: int) -> None:
    made = Steps(spec_tokens=2)
    if others:
        made.add("r0", {"decode": 5, "prefill": 20}[others], 8)
        made.step()
    made.add("r1", 1, 3)
    assert made.schedule()["r1"] == count


def test_where_a_padded_decode_does_not_fit_nobody_comes_after_it() -> None:
    made = Steps(spec_tokens=2, max_step_tokens=2)
    made.connector.has["r1"] = (8, False)
    made.add("r1", 9)
    made.add("r2", 2)
    assert (made.schedule(), made.queues) == ({}, ([], ["r1", "r2"], []))


# -- order, and who is skipped ------------------------------------------------------------------


def test_who_is_skipped_keeps_its_place() -> None:
    """The connector doesn't know yet what it has of two, and two load."""
    made = Steps(max_running=6, max_step_tokens=32)
    made.connector.has.update(r1=(None, False), r2=(4, True), r4=(None, False), r5=(4, True))
    for number in range(1, 7):
        made.add(f"r{number}", 5, 4)
    assert made.schedule() == {"r3": 5, "r6": 5}
    assert made.queues == (["r3", "r6"], ["r1", "r4"], ["r2", "r5"])
    made.process()
    assert (made.schedule(), made.queues[1:]) == ({"r3": 1, "r6": 1}, (["r1", "r4"], ["r2", "r5"]))
    made.process(finished_recving={"r5"})
    made.connector.has.clear()
    assert made.schedule() == {"r3": 1, "r6": 1, "r5": 1, "r1": 5, "r4": 5}
    assert made.queues == (["r3", "r6", "r5", "r1", "r4"], [], ["r2"])
    made.process(finished_recving={"r2"})
    assert made.schedule() == {"r3": 1, "r6": 1, "r5": 1, "r1": 1, "r4": 1, "r2": 1}


@pytest.mark.parametrize(
    ("config", "counts"),
    [
        ({"max_running": 2}, {"r1": 3, "r2": 3}),
        ({"max_step_tokens": 8}, {"r1": 3, "r2": 3, "r3": 2}),
        ({"max_step_tokens": 6}, {"r1": 3, "r2": 3}),
        ({"num_blocks": 3}, {"r1": 3, "r2": 3}),
    ],
)
def test_the_step_ends_where_tokens_places_or_blocks_do(config: dict[str, Any], counts: dict[str, int]) -> None:
    made = Steps(**config)
    for number in range(1, 5):
        made.add(f"r{number}", 3, 2)
    assert made.schedule() == counts
    assert made.queues == (list(counts), [f"r{number}" for number in range(len(counts) + 1, 5)], [])


def test_a_request_that_waits_for_its_own_output_keeps_nobody_from_running() -> None:
    """The last token of two is under way, so that they have nothing to compute."""
    made = Steps(async_scheduling=True, run_ahead=1)
    for name, output in (("r1", 2), ("r2", 1), ("r3", 3), ("r4", 4)):
        made.add(name, 3, output)
    counts = [made.schedule()]
    for _ in range(4):
        counts.append(made.schedule())
        made.process()
    assert counts == [
        {"r1": 3, "r2": 3, "r3": 3, "r4": 3},
        {"r1": 1, "r3": 1, "r4": 1},
        {"r3": 1, "r4": 1},
        {"r4": 1},
        {},
    ]


def test_the_longest_request_ends_where_the_model_does() -> None:
    made = Steps(num_blocks=4, spec_tokens=2)
    made.add("r1", 6, 6)
    counts = []
    while made.scheduler.requests:
        counts.append(made.step(r1=2))
    assert counts == [{"r1": 6}, {"r1": 3}, {"r1": 3}, {"r1": 3}, {"r1": 2}, {"r1": 1}]


# -- hits that end within a block ---------------------------------------------------------------


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize(
    ("has", "begins", "ends"),
    [
        # The GPU has 6 tokens of 11. The connector is asked from 4 on.
        (None, None, []),
        (4, 6, [(2, 0)]),
        (5, 6, [(2, 1)]),
        (6, 6, [(2, 2)]),
        (7, 7, [(2, 3)]),
        (10, 10, [(2, 6)]),
    ],
)
def test_a_load_takes_the_place_of_an_end_if_it_has_more(
    has: int | None, begins: int | None, ends: list[tuple[int, int]], is_async: bool
) -> None:
    made = Steps(hashes_per_block=2)
    made.add("r1", 7, 1, shared=7)
    made.step()
    made.connector.has["r2"] = (has, is_async)
    request = made.add("r2", 11, 1, shared=11)
    loads = begins not in (None, 6)
    waits = begins is None or (loads and is_async)
    assert made.schedule() == ({} if begins is None or waits else {"r2": 11 - begins})
    step = made.under_way[-1]
    assert step.ends == ends
    assert len(step.output.kv_cache_block_copies or ()) == (begins == 6)
    assert step.output.has_sync_kv_loads == (loads and not is_async)
    assert (request.status is Status.WAITING_FOR_REMOTE_KVS) == (loads and is_async)
    allocated = made.connector.take("update_state_after_alloc")[1:]
    assert [(about.request_id, external) for about, _, external in allocated] == (
        [] if begins is None else [("r2", begins - 4 if loads else 0)]
    )
    assert [blocks.get_block_ids() for _, blocks, _ in allocated] == (
        [] if begins is None else [made.scheduler.blocks.tables["r2"].get_block_ids()]
    )


# -- loads ------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_async", [False, True])
def test_a_load_may_write_the_blocks_that_it_was_announced_for(is_async: bool) -> None:
    """Not those that the GPU had, nor those that a window passed; and no longer than until it is reported."""
    made = Steps(groups=TWO, num_blocks=60)
    made.add("r1", 5, shared=5)
    made.step()
    made.connector.has["r2"] = (18, is_async)
    request = made.add("r2", 22, 2, shared=22)
    assert made.schedule() == ({} if is_async else {"r2": 4})
    full, window = made.scheduler.blocks.tables["r2"].get_block_ids()
    assert window[:2] == [0, 0]
    targets = [*full[1:5], *window[2:5]]
    shadow, step = made.scheduler.shadow, made.under_way[-1]
    assert shadow.load_rights == (dict.fromkeys(targets, "r2") if is_async else {})
    assert shadow.step_rights == ({} if is_async else dict.fromkeys(targets, made.scheduler.num_steps))
    assert step.sync_targets == ({} if is_async else {"r2": targets})
    assert set(step.poison).isdisjoint(targets)
    assert (request.awaits_load, step.output.has_sync_kv_loads) == (is_async, not is_async)
    assert made.connector.take("get_external_cache_hit_sources") == [(request, 14)]
    assert made.connector.take("get_loaded_kv_cache_group_ids") == ([(request,)] if is_async else [])
    made.process(finished_recving={"r2"} if is_async else None)
    assert (shadow.load_rights, shadow.step_rights, request.awaits_load) == ({}, {}, False)


@pytest.mark.parametrize(("has", "count"), [(8, 1), (7, 1), (4, 4)])
def test_of_a_prompt_that_is_loaded_whole_the_last_token_is_computed(has: int, count: int) -> None:
    made = Steps()
    made.connector.has["r1"] = (has, True)
    made.add("r1", 8)
    made.schedule()
    made.process(finished_recving={"r1"})
    assert made.schedule() == {"r1": count}


def test_what_was_loaded_is_found_by_others_although_its_request_never_went_on() -> None:
    """It needs three more blocks, and two are left; then it is aborted."""
    made = Steps()
    made.connector.has["r1"] = (8, True)
    made.add("r1", 17, shared=17)
    made.schedule()
    made.scheduler.blocks.block_pool.touch(range(5, 24))
    made.process(finished_recving={"r1"})
    assert (made.step(), made.queues) == ({}, ([], [], ["r1"]))
    made.outcome.finish(["r1"], Status.FINISHED_ABORTED)
    made.connector.has.clear()
    made.add("r2", 9, shared=9)
    assert made.schedule() == {"r2": 1}


@pytest.mark.parametrize(("has", "loads"), [(0, False), (1, True), (4, True)])
def test_a_step_says_whether_it_loads_and_its_blocks_whose_they_are(has: int, loads: bool) -> None:
    made = Steps()
    made.connector.has["r1"] = (has, False)
    made.add("r1", 5)
    made.schedule()
    assert made.under_way[-1].output.has_sync_kv_loads is loads
    shadow = made.scheduler.shadow
    assert [shadow.owner(block) for block in made.scheduler.blocks.tables["r1"].groups[0]] == ["request r1"] * 2


@pytest.mark.parametrize("has", [(8, False), (8, True), (None, False)])
def test_who_skips_the_cache_computes_all_of_it_whatever_the_connector_has(has: tuple[int | None, bool]) -> None:
    """And whatever the engine's own cache has."""
    made = Steps()
    made.add("r0", 9, shared=9)
    made.step()
    made.connector.has["r1"] = has
    made.add("r1", 9, shared=9, skip_reading_prefix_cache=True)
    assert (made.schedule(), made.queues) == ({"r1": 9}, (["r1"], [], []))
    assert not made.under_way[-1].output.has_sync_kv_loads


def test_a_step_loads_if_any_of_its_requests_does() -> None:
    made = Steps()
    made.connector.has["r1"] = (4, False)
    for name in ("r1", "r2"):
        made.add(name, 5)
    assert made.schedule() == {"r1": 1, "r2": 5}
    assert made.under_way[-1].output.has_sync_kv_loads


def test_a_block_that_a_running_request_gets_is_its_own() -> None:
    made = Steps()
    made.add("r1", 4, 2)
    made.step()
    assert made.schedule() == {"r1": 1}
    (table,) = made.scheduler.blocks.tables["r1"].groups
    assert [made.scheduler.shadow.owner(block) for block in table] == ["request r1"] * 2


@pytest.mark.parametrize(
    ("budget", "counts"),
    [
        (1, [(1, 0), (1, 0), (1, 0), (1, 0), (1, 0), (1, 0)]),
        (2, [(2, 0), (2, 0), (1, 0), (2, 1), (2, 1), (2, 1)]),
        (3, [(3, 0), (2, 0), (3, 2), (3, 2), (3, 2), (3, 2)]),
        (6, [(5, 0), (3, 2), (3, 2), (3, 2), (3, 2), (0, 0)]),
    ],
)
def test_as_many_drafts_are_tried_as_a_step_has_room_for(budget: int, counts: list[tuple[int, int]]) -> None:
    """Beside the token before them; what the steps under way sample is not known yet."""
    made = Steps(async_scheduling=True, run_ahead=2, spec_tokens=2, max_step_tokens=budget)
    made.add("r1", 5, 8)
    found = []
    for _ in counts:
        if len(made.under_way) > 2:
            made.process()
        found.append((made.schedule().get("r1", 0), made.drafts.get("r1", 0)))
    assert found == counts


def test_drafts_for_which_a_step_has_no_room_are_none_of_the_next() -> None:
    """Which knows of no more tokens, since the first has not come back."""
    made = Steps(spec_tokens=2, max_step_tokens=2, run_ahead=1)
    made.add("r1", 2, 8)
    assert made.step() == {"r1": 2}
    assert (made.schedule(), made.drafts) == ({"r1": 2}, {"r1": 1})
    assert made.schedule() == {}


# -- room for loads -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "tokens", "has", "needed"),
    [
        # The load of one takes 4 of 12 blocks, and that of the other takes 5.
        ({}, 47, 16, 4 + 5 + 8),
        # A step more of drafts takes the one to 13, and is kept free besides.
        ({"spec_tokens": 1}, 47, 16, 4 + 5 + 9 + 1),
        ({"spec_tokens": 2}, 47, 16, 4 + 5 + 9 + 1),
        ({"spec_tokens": 4}, 47, 16, 4 + 5 + 9 + 2),
        # Of a window 2 blocks are loaded, and 7 are held at most, of which 4 are passed or there.
        ({"groups": TWO}, 47, 16, 4 + 2 + 5 + 2 + 8 + 3),
        ({"groups": (GroupConfig(), GroupConfig("sliding", 9))}, 47, 16, 4 + 2 + 5 + 2 + 8 + 3),
        ({"groups": (GroupConfig(), GroupConfig("sliding", 10))}, 47, 16, 4 + 3 + 5 + 3 + 8 + 4),
        ({"groups": TWO, "run_ahead": 1}, 47, 16, 4 + 2 + 5 + 2 + 8 + 7),
        ({"groups": TWO, "spec_tokens": 2}, 47, 16, 4 + 2 + 5 + 2 + 9 + 3 + 2),
        ({"groups": TWO, "spec_tokens": 4}, 47, 16, 4 + 2 + 5 + 2 + 9 + 3 + 4),
        # All 7 are passed, but the next chunk of 16 tokens needs 4 of each.
        ({"groups": TWO}, 63, 40, 10 + 2 + 5 + 2 + 4 + 4),
    ],
)
def test_a_load_leaves_room_for_the_rest_of_one_before_it(
    config: dict[str, Any], tokens: int, has: int, needed: int
) -> None:
    for free in (needed - 1, needed):
        made = Steps(num_blocks=80, **config)
        made.scheduler.blocks.block_pool.touch(range(1, 80 - free))
        made.connector.has = {"r1": (has, True), "r2": (20, True)}
        made.add("r1", tokens, 2)
        made.add("r2", 21, 2)
        assert made.schedule() == {}
        waits = ["r2"] if free < needed else []
        assert made.queues == ([], waits, ["r1", "r2"][: 2 - len(waits)]), f"{free} blocks, {needed} are needed"
        is_stricter = bool(waits) and has == 40  # only there vLLM reserves fewer
        assert made.under_way[-1].keeps_room == is_stricter


def test_who_computes_all_of_its_prompt_in_the_same_step_reserves_nothing() -> None:
    """Two blocks are its own, the load takes five, and one is kept free for a step of drafts."""
    for free, waits in ((7, ["r2"]), (8, [])):
        made = Steps(spec_tokens=2)
        made.scheduler.blocks.block_pool.touch(range(1, 24 - free))
        made.connector.has["r2"] = (20, True)
        made.add("r1", 8, 2)
        made.add("r2", 21, 2)
        assert made.schedule() == {"r1": 8}
        assert made.queues[1] == waits


@pytest.mark.parametrize(("has", "tokens"), [((8, True), 25), ((8, False), 33), ((0, False), 25)])
def test_whose_prefill_is_over_reserves_nothing(has: tuple[int, bool], tokens: int) -> None:
    """A load is part of it; it is noted once."""
    made = Steps(max_step_tokens=8)
    made.connector.has["r1"] = has
    made.add("r1", tokens, 4)
    noted = []
    for received in ({"r1"}, None, None, None):
        made.schedule()
        noted.append([request.request_id for request in made.scheduler.inflight_prefills])
        made.process(finished_recving=received if has[1] else None)
    assert noted == [["r1"], ["r1"], ["r1"], []]
