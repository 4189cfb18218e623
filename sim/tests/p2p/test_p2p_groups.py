"""Engines that pull from themselves in worlds with several groups: what is drawn, the wire, and what is pulled."""

from collections import Counter
from dataclasses import replace
from random import Random

import numpy as np
import pytest

from kv_p2p.pulling.metadata import Hold, Part, Pull, Source
from kv_p2p.pulling.ticket import Address
from kv_p2p.pulling.wire import Ended
from kv_sim.config import GroupConfig, WorldConfig
from kv_sim.examples.catalogue import P2P, SUBJECTS
from kv_sim.fuzz import run_seed
from kv_sim.history.arrivals import Arrivals
from kv_sim.history.draws import config_for
from kv_sim.memory.device import Device
from kv_sim.memory.shadow import Shadow
from kv_sim.p2p import WorldWire
from kv_sim.violation import Invariant, Referee, Violation
from kv_sim.world import World

THERE = Source(Address("somewhere", 1), "r1.1", "digest")
NEAR, FAR = GroupConfig("sliding", 3), GroupConfig("sliding", 9)
WINDOW = (GroupConfig(), GroupConfig("sliding", 5))


def test_some_worlds_have_a_group_with_a_window() -> None:
    for subject in (P2P, SUBJECTS["p2p+offload"]):
        drawn = [config_for(subject, Random(seed)).groups for seed in range(200)]
        kinds = Counter(tuple(group.kind for group in groups) for groups in drawn)
        assert set(kinds) == {("full",), ("sliding",), ("full", "sliding")}
        assert kinds["full", "sliding"] / len(drawn) == pytest.approx(1 / 4, abs=0.1)


@pytest.mark.parametrize("prefix_caching", [True, False])
@pytest.mark.parametrize("groups", [(GroupConfig(),), (GroupConfig(), GroupConfig("sliding", 5))])
def test_half_of_the_requests_want_one_token_where_windows_slide(
    prefix_caching: bool, groups: tuple[GroupConfig, ...]
) -> None:
    config = WorldConfig(num_blocks=80, prefix_caching=prefix_caching, groups=groups)
    arrivals, random = Arrivals(config), Random(5)
    outputs = [arrivals.draw(random, ()).output_tokens for _ in range(500)]
    share = 2 / 3 if len(groups) > 1 and not prefix_caching else 1 / 3
    assert outputs.count(1) / 500 == pytest.approx(share, abs=0.1)


@pytest.fixture
def two() -> WorldWire:
    """Of a world with two groups."""
    device = Device(0, WorldConfig(num_blocks=12, groups=WINDOW), Shadow(1, Referee()))
    device.memory[3:7] = np.arange(4 * 4, dtype=np.uint64).reshape(4, 1, 4)
    device.shadow.load_rights.update({8: "r2", 9: "r2", 10: "r2"})
    return WorldWire(device)


def test_blocks_of_all_groups_are_pulled(two: WorldWire) -> None:
    two.serve(Hold("r1", "r1.1", "digest", ((3, 4), (0, 6))))
    two.pull(Pull("r2", THERE, (Part(0, (8, 9)), Part(1, (10,)))))
    for ended in (Ended(), Ended(served=["r1.1"], pulled=["r2"])):
        (copy,) = two.device.copies.running.values()
        two.device.copies.advance(copy, 3)
        assert two.poll() == ended
    assert two.device.memory[8:11].tolist() == two.device.memory[[3, 4, 6]].tolist()


@pytest.mark.parametrize(("first", "blocks"), [(0, (9, 10)), (0, (10,)), (1, (9, 10)), (2, (10,))])
def test_who_pulls_what_a_ticket_does_not_promise_breaks_the_protocol(
    two: WorldWire, first: int, blocks: tuple[int, ...]
) -> None:
    two.serve(Hold("r1", "r1.1", "digest", ((3, 4), (0, 6))))
    with pytest.raises(Violation) as raised:
        two.pull(Pull("r2", THERE, (Part(0, (8,)), Part(first, blocks))))
    assert raised.value.invariant is Invariant.PROTOCOL
    assert str(raised.value) == (
        f"PROTOCOL  request r2 pulls {len(blocks)} blocks of group 1 from place {first} on, by a ticket of "
        "request r1, which holds [0, 6]"
    )


@pytest.mark.once
def test_much_is_held_and_pulled_where_a_window_has_slid(monkeypatch: pytest.MonkeyPatch) -> None:
    happened: Counter[str] = Counter()
    serve, pull = WorldWire.serve, WorldWire.pull

    def served(wire: WorldWire, hold: Hold) -> None:
        happened["held"] += any(0 in table for table in hold.tables)
        serve(wire, hold)

    def pulled(wire: WorldWire, one: Pull) -> None:
        happened["pulled"] += one.parts[1].first > one.parts[0].first
        pull(wire, one)

    monkeypatch.setattr(WorldWire, "serve", served)
    monkeypatch.setattr(WorldWire, "pull", pulled)
    seeds = [seed for seed in range(300) if len(config_for(P2P, Random(seed)).groups) > 1]
    for seed in seeds:
        assert run_seed(P2P, seed).failure is None
        if happened["held"] > 100 and happened["pulled"] > 15:
            return
    pytest.fail(str(happened))


@pytest.mark.once
@pytest.mark.parametrize(
    "groups",
    [(NEAR,), (FAR,), (NEAR, GroupConfig()), (GroupConfig(), NEAR, FAR)],
    ids=lambda groups: "+".join(str(group.window or "all") for group in groups),
)
def test_groups_that_no_world_is_drawn_with(
    groups: tuple[GroupConfig, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A window alone, one that comes first, and several."""
    pulled: list[str] = []
    poll = WorldWire.poll

    def polled(wire: WorldWire) -> Ended:
        ended = poll(wire)
        pulled.extend(ended.pulled)
        return ended

    monkeypatch.setattr(WorldWire, "poll", polled)
    for seed in range(10):
        random = Random(seed)
        config = config_for(P2P, random)
        blocks = config.num_blocks // config.blocks_per_span * len(groups)
        World(replace(config, groups=groups, hashes_per_block=1, num_blocks=blocks), P2P).run(random, 80)
    assert len(pulled) > 3
