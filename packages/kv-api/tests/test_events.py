"""KV events: when two are equal, which all workers share, and how their containers merge."""

from typing import Any

import pytest

import kv_api


def stored(**changes: Any) -> kv_api.BlockStored:
    values: dict[str, Any] = {
        "block_hashes": [b"h"],
        "parent_block_hash": None,
        "token_ids": [1],
        "block_size": 1,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
    }
    return kv_api.BlockStored(**{**values, **changes})


CHANGES: list[dict[str, Any]] = [
    {"block_hashes": [b"i"]},
    {"parent_block_hash": b"p"},
    {"token_ids": [2]},
    {"block_size": 2},
    {"lora_name": "l"},
    {"medium": "CPU"},
    {"extra_keys": [("salt",)]},
    {"group_idx": 1},
    {"locality": "LOCAL"},
    {"ownership": "fs"},
    {"session_id": "s"},
    {"lookahead_token_ids": [[3]]},
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: next(iter(change)))
def test_events_are_equal_only_in_every_field(change: dict[str, Any]) -> None:
    assert stored() == stored()
    assert hash(stored()) == hash(stored())
    assert stored(**change) != stored()
    assert hash(stored(block_hashes=[])) != hash(stored()), "one of no blocks is an event, too"
    assert len({stored(), stored(), stored(**change)}) == 2


def test_events_of_other_blocks_have_other_hashes() -> None:
    """Else a set of many events, of which each is one block more, compares each with each."""
    of_place = {"block_hashes", "parent_block_hash", "medium", "group_idx"}
    others = [stored(**change) for change in CHANGES if of_place & change.keys()]
    assert len(others) == len(of_place)
    assert len({hash(event) for event in [stored(), *others]}) == 1 + len(others)
    removed = [
        kv_api.BlockRemoved(*of)
        for of in ([[b"h"], "GPU", 0], [[b"i"], "GPU", 0], [[b"h"], "CPU", 0], [[b"h"], "GPU", 1])
    ]
    assert len({hash(event) for event in removed}) == len(removed)


def test_an_event_says_nothing_of_what_its_writer_left_out() -> None:
    needed = {"block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name"}
    for event in (stored(), kv_api.BlockRemoved([b"h"], "GPU")):
        assert {value for name, value in vars(event).items() if name not in needed} == {None}


def test_only_events_of_every_worker_are_common() -> None:
    gone = kv_api.BlockRemoved([b"h"], "GPU")
    aggregator = kv_api.KVEventAggregator(2)
    aggregator.add_events([stored(), gone])
    aggregator.add_events([stored(), kv_api.AllBlocksCleared()])
    assert aggregator.get_common_events() == [stored()]
    assert len(aggregator.get_all_events()) == 4
    aggregator.increment_workers()
    assert (aggregator.get_number_of_workers(), aggregator.get_common_events()) == (3, [])
    assert repr(aggregator) == "<KVEventAggregator workers=3 events=3>"
    aggregator.reset_workers()
    assert aggregator.get_common_events() == [gone, kv_api.AllBlocksCleared()]
    aggregator.increment_workers()
    aggregator.clear_events()
    assert (aggregator.get_all_events(), aggregator.get_number_of_workers()) == ([], 2)


def test_an_event_that_one_worker_reports_twice_is_there_twice() -> None:
    aggregator = kv_api.KVEventAggregator(1)
    aggregator.add_events([stored(), stored()])
    assert aggregator.get_all_events() == [stored(), stored()]


def test_the_event_aggregator_refuses_nonsense() -> None:
    with pytest.raises(ValueError, match=r"^num_workers: expected at least 1, got 0$"):
        kv_api.KVEventAggregator(0)
    aggregator = kv_api.KVEventAggregator(1)
    for count in (-1, 0):
        with pytest.raises(ValueError, match=rf"^count: expected at least 1, got {count}$"):
            aggregator.increment_workers(count)
    wrong: Any = ()
    with pytest.raises(TypeError, match=r"^events: expected a list, got \(\) \(tuple\)$"):
        aggregator.add_events(wrong)


def test_containers_of_events_merge() -> None:
    class Container(kv_api.KVConnectorKVEvents):
        def __init__(self, events: list[kv_api.KVCacheEvent]) -> None:
            self.aggregator = kv_api.KVEventAggregator(1)
            self.add_events(events)

        def add_events(self, events: list[kv_api.KVCacheEvent]) -> None:
            self.aggregator.add_events(events)

        def aggregate(self) -> kv_api.KVConnectorKVEvents:
            return self

        def increment_workers(self, count: int = 1) -> None:
            self.aggregator.increment_workers(count)

        def get_all_events(self) -> list[kv_api.KVCacheEvent]:
            return self.aggregator.get_all_events()

        def get_number_of_workers(self) -> int:
            return self.aggregator.get_number_of_workers()

        def clear_events(self) -> None:
            self.aggregator.clear_events()

    merged = Container([stored()]).merge(Container([stored(), kv_api.AllBlocksCleared()]))
    assert merged.get_all_events() == [stored(), stored(), kv_api.AllBlocksCleared()]
    assert merged.get_number_of_workers() == 1, "whoever merges counts the worker by itself"
