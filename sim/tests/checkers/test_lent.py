"""What is asked at rest of engines that share a store, one step at a time, of made-up engines."""

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from kv_sim_notes import Notes

from kv_sim.checkers import sharing
from kv_sim.config import COUNTERPARTS, STATE, GroupConfig, Role, WorldConfig
from kv_sim.engine.request_spec import RequestSpec
from kv_sim.examples.catalogue import SHARED
from kv_sim.memory.copy import State

NAME = "lent-0"


class Pair:
    """Two engines that share a store, of which the second finds so many tokens of what comes."""

    def __init__(self, finds: int | None = 0, *, config: WorldConfig | None = None, **subject: Any) -> None:
        self.config = WorldConfig(host_slots=8) if config is None else config
        self.subject = replace(SHARED, **subject)
        self.finds = finds
        self.calls: list[tuple[Any, ...]] = []
        self.when: dict[str, Callable[[], None]] = {}
        """What happens when a request comes, by its name."""
        self.here, self.there = self.site(0), self.site(1)
        self.here.shares_with, self.there.shares_with = [self.there], [self.here]

    @property
    def sites(self) -> list[Any]:
        return [self.here, self.there]

    def site(self, number: int) -> Any:
        def add(spec: RequestSpec) -> None:
            self.calls.append((number, spec.request_id, spec.shared_tokens, spec.own_tokens))
            if number == 1 and spec.request_id == NAME and self.finds is not None:
                engine.served.found[NAME] = self.finds
            self.when.get(spec.request_id, lambda: None)()

        pool = SimpleNamespace(reset=lambda: self.calls.append((number, "reset")))
        engine = SimpleNamespace(
            has_work=False,
            add=add,
            served=SimpleNamespace(resets=0, found={}),
            devices=[SimpleNamespace(copies=SimpleNamespace(running=[], ended=[]))],
            scheduler=SimpleNamespace(blocks=SimpleNamespace(block_pool=pool)),
            mirror=SimpleNamespace(blocks={("CPU", 0, b"%d" % number): 1}),
            take_events=lambda: self.calls.append((number, "events")),
        )
        return SimpleNamespace(
            engine=engine,
            subject=self.subject,
            config=self.config.at(number),
            place=SimpleNamespace(number=number),
            referee=Notes(),
        )

    def settle(self) -> bool:
        self.calls.append(("settle",))
        return True

    def ask(self) -> list[str]:
        """What is found wrong at the second engine."""
        sharing.check_lent(self.here, self.settle)
        assert self.here.referee.take() == []
        told: list[str] = self.there.referee.take()
        return told

    def copy_fails(self, site: Any) -> None:
        site.engine.devices[0].copies.ended.append(SimpleNamespace(state=State.FAILED))


def heard(round_: int) -> list[tuple[Any, ...]]:
    return [call for number in (0, 1) for call in ((number, f"heard-{round_}", 0, 1), ("settle",))]


ALL_HEAR = [*heard(0), *heard(1), *heard(2)]


def test_each_hears_in_its_turn_three_times() -> None:
    pair = Pair()
    assert sharing.let_all_hear(pair.sites, pair.settle)
    assert pair.calls == ALL_HEAR


@pytest.mark.parametrize("number", [0, 1])
def test_while_anybody_is_busy_nobody_is_asked(number: int) -> None:
    pair = Pair()
    pair.sites[number].engine.has_work = True
    assert not sharing.let_all_hear(pair.sites, pair.settle)
    assert pair.calls == []


@pytest.mark.parametrize("number", [0, 1])
def test_who_does_not_end_what_it_heard_last_is_told_of(number: int) -> None:
    pair = Pair()
    busy = pair.sites[number].engine
    left = iter([True])

    def gets_busy() -> None:
        busy.has_work = len(pair.calls) == len(ALL_HEAR) - 1 and next(left)

    pair.when["heard-2"] = gets_busy
    assert not sharing.let_all_hear(pair.sites, pair.settle)
    assert pair.calls == ALL_HEAR


def test_what_is_told_is_what_all_tell() -> None:
    pair = Pair()
    assert sharing.told_at(pair.here) == sharing.told_at(pair.there) == {b"0", b"1"}
    assert pair.calls == [(0, "events"), (1, "events"), (1, "events"), (0, "events")]


def test_a_prompt_is_computed_here_then_all_hear_and_then_it_comes_there_with_a_token_more() -> None:
    pair = Pair(32, keeps_from=2)
    assert pair.ask() == []
    computed = [(0, "reset"), (0, NAME, 0, 32), ("settle",)]
    assert pair.calls == [*computed, *computed, *ALL_HEAR, (1, "reset"), (1, NAME, 0, 33), ("settle",)]


def test_less_than_all_of_it_is_too_little() -> None:
    assert Pair(31).ask() == [
        "HITS  request lent-0 arrives at rest: 31 of its first 32 tokens are found, but engine 0, which "
        "shares the "
        "store, has just computed them all"
    ]
    pair = Pair(None)
    pair.there.engine.served.found[NAME] = 32
    assert len(pair.ask()) == 1, "this was found another time"


@pytest.mark.parametrize("number", [0, 1])
def test_what_fails_meanwhile_need_not_be_found(number: int) -> None:
    pair = Pair(31)
    pair.copy_fails(pair.sites[number])
    assert len(pair.ask()) == 1, "this one failed before"
    pair.when[NAME] = lambda: pair.copy_fails(pair.sites[number])
    assert pair.ask() == []


def test_who_is_busy_when_it_was_asked_has_not_answered() -> None:
    pair = Pair(31)

    def gets_busy() -> None:
        pair.there.engine.has_work = pair.calls[-1][0] == 1

    pair.when[NAME] = gets_busy
    assert pair.ask() == []


def test_who_does_not_end_what_it_heard_is_not_asked() -> None:
    pair = Pair(31)

    def gets_busy() -> None:
        pair.here.engine.has_work = True

    pair.when["heard-2"] = gets_busy
    assert pair.ask() == []
    assert pair.calls == [(0, "reset"), (0, NAME, 0, 32), ("settle",), *ALL_HEAR[: 4 + 4 + 2]]


@pytest.mark.parametrize("number", [0, 1])
def test_nobody_is_asked_while_a_copy_is_under_way(number: int) -> None:
    pair = Pair()
    pair.sites[number].engine.devices[0].copies.running.append("copy")
    assert pair.ask() == [] == pair.calls


@pytest.mark.parametrize("number", [0, 1])
def test_nobody_is_asked_after_a_reset(number: int) -> None:
    pair = Pair()
    pair.sites[number].engine.served.resets = 1
    assert pair.ask() == [] == pair.calls
    assert sharing.stores_of(pair.here) == [pair.here]


@pytest.mark.parametrize(("role", "is_asked"), [("kv_both", True), ("kv_producer", True), ("kv_consumer", False)])
def test_who_only_loads_stores_nothing_that_another_could_find(role: Role, is_asked: bool) -> None:
    pair = Pair(32, config=WorldConfig(host_slots=8, engines=2, role=role))
    assert pair.there.config.role == COUNTERPARTS[role]
    assert pair.ask() == []
    assert bool(pair.calls) == is_asked


def test_nobody_is_asked_who_may_evict_what_came_last() -> None:
    pair = Pair(evicts_oldest=False)
    assert pair.ask() == [] == pair.calls


def test_of_who_drops_the_last_block_a_chunk_less_is_found() -> None:
    config = WorldConfig(host_slots=8, spec_tokens=1, drafter="eagle")
    assert config.drops_last_block
    assert Pair(24, config=config, blocks_per_chunk=2).ask() == []
    assert len(Pair(23, config=config, blocks_per_chunk=2).ask()) == 1


FULL = GroupConfig()
SMALL = GroupConfig(parts=4)
MUCH = {"host_slots": 40, "hashes_per_block": 4, "num_blocks": 80}
EAGLE = {"spec_tokens": 1, "drafter": "eagle"}


@pytest.mark.parametrize(
    ("groups", "size", "more", "tokens"),
    [
        ((FULL,), 1, {}, 32),
        ((FULL,), 3, {}, 24),
        ((FULL, FULL), 1, {}, 16),
        ((FULL, FULL), 3, {}, 12),
        ((FULL,), 1, {"host_slots": 1000}, None),
        ((FULL,), 1, {"host_slots": 1000, "spec_tokens": 3}, None),  # a token less than another chunk takes
        ((FULL,), 9, {}, 0),
        ((FULL, STATE), 1, {}, 0),
        ((FULL, GroupConfig(window=4)), 2, {}, 0),  # it begins with the last token of a chunk
        ((FULL, GroupConfig(window=5)), 2, {}, 0),
        ((FULL, GroupConfig(window=6)), 2, {}, 16),
        ((FULL, GroupConfig(window=8)), 2, {}, 16),
        ((FULL, GroupConfig(window=8)), 1, {}, 16),
        ((FULL, GroupConfig(window=8)), 1, EAGLE, 0),
        ((FULL, FULL), 1, EAGLE, 16),
        ((SMALL, GroupConfig(window=8)), 1, MUCH, 28),
        ((SMALL, GroupConfig(window=8)), 2, MUCH, 32),
        ((FULL, FULL), 1, {"host_slots": 20, "block_size": 1}, 7),
    ],
)
def test_how_much_is_found_of_what_was_stored(
    groups: tuple[GroupConfig, ...], size: int, more: dict[str, Any], tokens: int | None
) -> None:
    """Of blocks of four tokens: as many chunks as have room, of a window those that aren't lost.

    Where a chunk has one token, what all hear of takes room, too.
    """
    config = WorldConfig(**{"host_slots": 8, "block_size": 4, "groups": groups, **more})
    pair = Pair(0, config=config, blocks_per_chunk=size)
    found = pair.ask()
    asked = max((call[3] for call in pair.calls if call[:2] == (0, NAME)), default=0)
    longest = (config.longest_request - 2) // 4 * 4
    assert asked == (longest if tokens is None else tokens)
    assert len(found) == (asked > 0)
    assert bool(pair.calls) == (asked > 0)


def test_a_prompt_fits_both() -> None:
    pair = Pair()
    pair.there.config = replace(pair.config, host_slots=5)
    assert len(pair.ask()) == 1
    assert pair.calls[1] == (0, NAME, 0, 20)
    pair.calls.clear()
    pair.here.config = replace(pair.config, host_slots=3)
    assert len(pair.ask()) == 1
    assert pair.calls[1] == (0, NAME, 0, 12)
