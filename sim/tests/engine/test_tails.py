"""States within blocks: where they are kept, what is handed over and registered, and who is caught by them."""

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from kv_api import BlockRemoved, BlockStored, ConfigError, Request
from kv_offload import OffloadingConnector
from kv_offload.scheduler.state.pins import Pins
from kv_sim.actions import Action, Kind
from kv_sim.checkers.accounting import Mirror
from kv_sim.config import NULL, STATE, GroupConfig, WorldConfig
from kv_sim.engine.output import BlockCopy
from kv_sim.engine.request_spec import RequestSpec
from kv_sim.examples.catalogue import LATER, MEMORY, OFFLOAD, fenced, offloading
from kv_sim.fuzz import run_seed
from kv_sim.history.draws import config_for
from kv_sim.memory.settled import Offer, Settled, offers
from kv_sim.subject import Subject, Trait
from kv_sim.violation import Invariant, Referee, Violation
from kv_sim.watching.brief import brief_step
from kv_sim.world import World

CONFIG = WorldConfig(
    num_blocks=40,
    block_size=8,
    hashes_per_block=4,
    groups=(GroupConfig(), STATE),
    hands_over_states=True,
    max_step_tokens=16,
)
STEP, SETTLE = Action(Kind.STEP), Action(Kind.SETTLE)
FENCED = fenced()
HELD = offloading(hold_blocks="always")


def request(name: str, tokens: int, output: int = 1, own: int = 0) -> RequestSpec:
    return RequestSpec(name, 0, tokens, own, output, output)


def world(*requests: RequestSpec, config: WorldConfig = CONFIG, subject: Subject = OFFLOAD) -> World:
    made = World(config, subject)
    for spec in requests:
        made.engine.add(spec)
    return made


def schedule(made: World) -> Any:
    """The next step, as the scheduler's side was told of it: what a step hands over, no worker gets."""
    guard, told = made.engine.guards[-1], []
    build = guard.build_connector_meta
    guard.build_connector_meta = lambda output: told.append(output.kv_connector_block_state) or build(output)
    output = made.engine.schedule(lambda request, drafts: 0).output
    guard.build_connector_meta = build
    return replace(output, kv_connector_block_state=told[0])


def handed(output: Any) -> dict[str, list[tuple[int, int, int]]]:
    offers: dict[str, list[tuple[int, int, int]]] = output.kv_connector_block_state.boundary_state_offloads
    return offers


def test_a_chunk_ends_where_the_last_hash_of_the_prompt_does_and_where_others_share_it() -> None:
    made = world(request("r1", 11, own=4))
    steps = [schedule(made) for _ in range(1)]
    made.engine.finish_step()
    for _ in range(2):
        steps.append(schedule(made))
        made.engine.finish_step()
    assert [step.num_scheduled_tokens["r1"] for step in steps] == [10, 4, 1]
    (r1,) = made.engine.outcome.ended
    assert made.engine.scheduler.blocks.tails is not None
    assert made.engine.scheduler.blocks.tails.boundaries(r1) == [10, 14]


def test_the_next_step_copies_the_state_and_hands_the_copy_over() -> None:
    made = world(request("r1", 13, output=2))
    first = schedule(made)
    made.engine.finish_step()
    table = list(made.engine.scheduler.blocks.tables["r1"].groups[1])
    second = schedule(made)
    (copy,) = second.kv_cache_block_copies
    assert handed(first) == {"r1": [(1, table[0], 8)]}
    assert handed(second) == {"r1": [(1, copy.dst_block_id, 12)]}
    assert copy.src_block_id == table[1]
    assert copy.dst_block_id not in made.engine.scheduler.blocks.tables["r1"].groups[1]
    assert f"hands over block {copy.dst_block_id} of r1 after 12" in brief_step(second)
    made.engine.finish_step()
    device, r1 = made.engine.devices[0], made.engine.scheduler.requests["r1"]
    page = device.memory[copy.dst_block_id, 0] ^ device.kernels.keys[1][0]
    assert set(page.tolist()) == {int(r1.hashes[11])}, "the state after twelve tokens"
    counts = made.engine.scheduler.blocks.block_pool.ref_counts
    assert counts[copy.src_block_id] == 1


def test_it_does_so_once() -> None:
    made = world(request("r1", 13, output=3))
    steps = []
    for _ in range(4):
        steps.append(schedule(made))
        made.engine.finish_step()
    once = [False, True, False, False]
    assert [12 in [end for _, _, end in handed(step).get("r1", [])] for step in steps] == once
    assert [bool(step.kv_cache_block_copies) for step in steps] == once


def test_who_shares_the_prompt_goes_on_within_the_block() -> None:
    made = world(request("r1", 13))
    made.apply(STEP)
    made.apply(STEP)
    made.engine.add(request("r2", 13, own=2))
    output = schedule(made)
    assert output.num_scheduled_tokens == {"r2": 2}, "to its own last hash"
    assert len(output.kv_cache_block_copies) == 2, "a block of each group"
    tables = made.engine.scheduler.blocks.tables["r2"].groups
    assert tables[1][0] == NULL
    made.rest()


def test_of_a_request_that_loses_its_blocks_in_that_step_nothing_is_handed_over() -> None:
    made = world(request("r1", 13, output=2))
    made.apply(STEP)
    blocks = made.engine.scheduler.blocks
    assert blocks.allocate("r1", 13, computed_tokens=12)
    blocks.free("r1")
    assert blocks.take_handed() == {}
    assert blocks.tails is not None
    assert not blocks.tails.blocks_to_copy("r1")


@pytest.mark.parametrize("subject", [HELD, FENCED])
def test_who_is_aborted_there_registers_its_block(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    told = []
    register = OffloadingConnector.register_finished_partial_tail

    def registered(self: OffloadingConnector, ended: Request, blocks: Any, tails: Any) -> bool:
        told.append((ended.request_id, tails, register(self, ended, blocks, tails)))
        return told[-1][2]

    monkeypatch.setattr(OffloadingConnector, "register_finished_partial_tail", registered)
    made = world(request("r1", 13), subject=subject)
    made.apply(STEP)
    table = list(made.engine.scheduler.blocks.tables["r1"].groups[1])
    made.engine.abort("r1")
    assert told == [("r1", [(1, table[1], 12)], subject is HELD)]
    made.engine.scheduler.blocks.block_pool.reset()
    for _ in range(2):
        made.apply(STEP)
        made.apply(SETTLE)
    made.engine.scheduler.blocks.block_pool.reset()
    made.engine.add(request("r2", 15))
    made.apply(STEP)
    assert made.engine.scheduler.requests["r2"].num_computed_tokens == 12
    made.rest()


def test_but_not_where_nothing_is_stored() -> None:
    made = world(request("r1", 13), config=replace(CONFIG, role="kv_consumer"))
    made.apply(STEP)
    tails = made.engine.outcome._tails_of
    r1 = made.engine.scheduler.requests["r1"]
    assert tails(r1) == []
    stores = world(request("r1", 13))
    stores.apply(STEP)
    assert len(stores.engine.outcome._tails_of(stores.engine.scheduler.requests["r1"])) == 1


@pytest.mark.parametrize("count", [2, 16])
def test_but_not_when_a_step_has_gone_on_or_has_not_come_back(count: int) -> None:
    made = world(request("r1", 13, output=2), config=replace(CONFIG, run_ahead=1, max_step_tokens=count))
    blocks = made.engine.scheduler.blocks
    assert blocks.tails is not None
    schedule(made)
    r1 = made.engine.scheduler.requests["r1"]
    assert blocks.tails.end(r1, blocks.tables["r1"].groups) == []


def test_but_not_when_a_failed_load_has_taken_back_what_it_was_computed_from() -> None:
    made = world(request("r1", 13))
    made.apply(STEP)
    blocks, r1 = made.engine.scheduler.blocks, made.engine.scheduler.requests["r1"]
    assert blocks.tails is not None
    assert r1.num_computed_tokens == 12
    r1.num_computed_tokens = 8
    assert blocks.tails.end(r1, blocks.tables["r1"].groups) == []


def come_again(subject: Subject, config: WorldConfig = CONFIG) -> World:
    """A prompt is stored, the GPU forgets it, and it comes again, longer, but not to the block's end."""
    made = world(request("r1", 13, own=1), config=config, subject=subject)
    for _ in range(4):
        made.apply(STEP)
        made.apply(SETTLE)
    assert made.engine.scheduler.blocks.block_pool.reset()
    made.engine.add(request("r2", 13, own=2))
    made.apply(STEP)
    return made


@pytest.mark.parametrize("subject", [HELD, FENCED])
def test_it_is_loaded_and_gone_on_from(subject: Subject) -> None:
    made = come_again(subject)
    assert made.engine.scheduler.requests["r2"].num_computed_tokens == 12
    assert made.coverage.situations["match: a load ends within a block"] == 1
    assert made.coverage.situations["a state within a block is handed over"] == 1
    made.rest()


# -- who is caught -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("place", "message"), [(0, r"request r2 token 8: .*\(group 0"), (1, r"request r2 token 11: .*\(group 1")]
)
def test_a_wrong_byte_of_a_tail_is_seen(place: int, message: str) -> None:
    made = come_again(FENCED)
    made.apply(SETTLE)
    table = made.engine.scheduler.blocks.tables["r2"].groups[place]
    made.engine.devices[0].memory[table[1], 0, 0] ^= 1
    with pytest.raises(Violation, match=message) as raised:
        made.rest()
    assert raised.value.invariant is Invariant.CONTENT


@pytest.mark.parametrize(
    ("end", "message"),
    [
        (19, "found 3 tokens, but no hash ends there, so no state was stored"),
        (18, "found 2 tokens, but no request has computed so far"),
    ],
)
def test_a_hit_ends_where_a_state_was_kept(monkeypatch: pytest.MonkeyPatch, end: int, message: str) -> None:
    def match(self: OffloadingConnector, request: Request, local: int) -> tuple[int, bool]:
        return end - local, True

    made = world(request("r1", 23))
    made.apply(STEP)
    monkeypatch.setattr(OffloadingConnector, "get_num_new_matched_tokens", match)
    made.engine.add(request("r2", 23, own=1))
    with pytest.raises(Violation, match=rf"HITS  request r2: get_num_new_matched_tokens\(…, 16\) {message}"):
        made.apply(STEP)


def runs(subject: Subject, seeds: range) -> Any:
    for seed in seeds:
        config = config_for(subject, Random(seed))
        if config.has_tails:
            yield run_seed(subject, seed)


@pytest.mark.parametrize("pinned", [2, 1])
def test_tokens_of_a_tail_that_nothing_holds_are_overwritten(pinned: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their request lets go of them while the tail is being stored."""
    pin = Pins.pin
    monkeypatch.setattr(Pins, "pin", lambda self, job, blocks: pin(self, job, blocks[-pinned:]))
    config = replace(CONFIG, num_blocks=8, runner=2, zero_new_blocks=True)
    made = world(request("r1", 13, output=3), config=config, subject=HELD)
    made.apply(STEP)
    made.apply(STEP)
    made.engine.reset(running=True, connector=False)
    made.engine.abort("r1")
    made.engine.add(replace(request("r2", 14), conversation=1))
    if pinned == 2:
        made.apply(STEP)
        made.rest()
    else:
        with pytest.raises(Violation, match=r"OWNERSHIP  .* zeroes it while store"):
            made.apply(STEP)


def test_what_is_appended_to_a_tail_does_no_harm() -> None:
    made = world(request("r1", 13, output=3), subject=FENCED)
    for _ in range(3):  # the last of these appends, and the store has not moved anything
        made.apply(STEP)
    assert made.engine.devices[0].copies.running
    made.rest()


def test_but_its_beginning_is_not_to_be_changed() -> None:
    made = world(request("r1", 13, output=3), subject=FENCED)
    made.apply(STEP)
    schedule(made)
    ((name, block, count),) = made.engine.steps[-1].handed
    assert (name, count) == ("r1", 4)
    made.engine.steps[-1].handed = [Offer(name, block, 7)]
    made.engine.finish_step()
    with pytest.raises(Violation, match=rf"OWNERSHIP  .* block {block} .* computes into it while store"):
        made.apply(STEP)


def test_a_store_wants_what_was_handed_over_when_it_began() -> None:
    """More of the same block is handed over while it waits, and the step that computes these has not retired."""
    config = replace(CONFIG, hashes_per_block=8, max_step_tokens=4, run_ahead=1, async_scheduling=True)
    spec = RequestSpec("r1", 0, 9, 7, 1, 1, skip_reading_prefix_cache=True)
    made = world(spec, config=config)
    for _ in range(6):
        made.apply(STEP)
    settled = [copy.settled for copy in made.engine.devices[0].copies.running.values() if copy.settled]
    assert [list(of.values()) for of in settled] == [[("r1", 1)], [("r1", 7)], [("r1", 7)]]
    assert len({block for of in settled for block in of}) == 1
    made.rest()


def test_what_is_said_of_a_block_ends_with_who_has_it() -> None:
    made = Settled()
    made.begin_step([3, 5], [Offer("r1", 5, 4), Offer("r2", 6, 1)])
    made.begin_step([3], [Offer("r1", 5, 6)])
    assert made.of([3, 5, 6, 7]) == {5: ("r1", 6), 6: ("r2", 1)}
    assert made.of([6]) == {6: ("r2", 1)}
    made.begin_step([5, 6], [Offer("r3", 6, 2)])
    assert made.of([3, 5, 6]) == {6: ("r3", 2)}


def test_only_an_end_within_a_block_is_appended_to() -> None:
    assert offers("r1", [(1, 7, 11), (1, 4, 16), (1, 9, 7)], [3, 4], 8) == [("r1", 4, 3), ("r1", 3, 7)]


@pytest.mark.parametrize("runner", [1, 2])
def test_blocks_of_a_step_are_new_ones_however_they_are_filled(runner: int) -> None:
    made = world(request("r1", 13), config=replace(CONFIG, runner=runner))
    settled = made.engine.devices[0].settled
    schedule(made)
    step = made.engine.steps[-1]
    settled.begin_step([], [Offer("r0", block, 1) for block in range(1, 20)])
    copied = step.output.kv_cache_block_copies = [BlockCopy(11, 12)]
    step.load_targets += [14, 15]
    made.engine.execute(0)
    left = set(range(1, 20)).difference(step.poison, [14, 15], [copied[0].dst_block_id])
    assert set(settled.of(range(20))) == left
    assert step.poison


# -- events ------------------------------------------------------------------------------------


def test_what_is_told_of_a_tail_is_true() -> None:
    made = world(request("r1", 13))
    r1 = made.engine.scheduler.requests["r1"]
    mirror = Mirror(Referee(), is_exact=True)
    mirror.know(r1)
    h, tokens = r1.block_hashes, list(r1.all_token_ids)
    told = BlockStored([h[4], h[5]], h[3], tokens[8:12], 2, None, "CPU", None, group_idx=0)
    longer = replace_event(told, block_hashes=[h[4]], token_ids=tokens[8:10])
    mirror.take([told, longer, BlockRemoved([h[4], h[5]], "CPU", group_idx=0)])
    assert dict(mirror.blocks) == {("CPU", 0, h[4]): 1}
    for wrong in ({"token_ids": tokens[7:11]}, {"block_size": 8}, {"parent_block_hash": h[2]}):
        with pytest.raises(Violation, match="ACCOUNTING  an event for blocks"):
            mirror.take([replace_event(told, **wrong)])


def replace_event(event: BlockStored, **values: Any) -> BlockStored:
    fields = {
        name: getattr(event, name) for name in ("block_hashes", "parent_block_hash", "token_ids", "block_size")
    }
    return BlockStored(**{**fields, **values}, lora_id=None, medium="CPU", lora_name=None, group_idx=0)


# -- who meets them ----------------------------------------------------------------------------


def test_worlds_have_them_for_those_who_claim_states_and_fine_hashes() -> None:
    drawn = [config_for(OFFLOAD, Random(seed)) for seed in range(600)]
    found = [config for config in drawn if config.has_tails]
    assert 15 < len(found) < 60
    assert {config.groups for config in found} == {(GroupConfig(), STATE)}
    assert len({config.hashes_per_block for config in found}) > 1
    without = replace(OFFLOAD, traits=OFFLOAD.traits - {Trait.FINE})
    for subject in (LATER, MEMORY, without):
        assert not any(config_for(subject, Random(seed)).has_tails for seed in range(300))
    assert {
        config.runner for config in (config_for(FENCED, Random(s)) for s in range(600)) if config.has_tails
    } == {1}


@pytest.mark.once
def test_nothing_breaks_in_ours() -> None:
    loads = 0
    for run in (*runs(OFFLOAD, range(71_000, 71_300)), *runs(FENCED, range(70_300, 70_600))):
        assert run.failure is None, run.failure.violation
        loads += run.coverage.situations["match: a load ends within a block"]
    assert loads


def test_sizes_that_do_not_fit_are_refused() -> None:
    for groups, hands_over in (
        ((GroupConfig(), STATE), False),
        ((GroupConfig(), GroupConfig("sliding", 4)), True),
    ):
        with pytest.raises(ConfigError, match="hashes_per_block: got 4; with these groups only 1 is possible"):
            replace(CONFIG, groups=groups, hands_over_states=hands_over)


def test_the_longest_request_fits_alone() -> None:
    small = replace(CONFIG, num_blocks=12, block_size=4, hashes_per_block=2)
    longest = small.max_model_len
    assert longest == (12 - 1 - 3) // 2 * 4
    made = world(request("r1", longest - 2), request("r2", longest - 2), config=small)
    made.rest()
    assert {r.request_id for r in made.engine.outcome.ended} >= {"r1", "r2"}
