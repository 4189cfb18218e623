"""KV events: what is told is what is there."""

from types import SimpleNamespace

import pytest
from kv_offload_calls import arrive, begin_load, key, report, run
from kv_offload_configs import FULL, STATE, WINDOW, Request

from kv_api import BlockRemoved, BlockStored, Locality, Medium, OffloadingEvent
from kv_api.blocks import hash_extras
from kv_offload import OffloadingConnector
from kv_offload.scheduler.events import EventTranslator
from kv_offload.shape.layout import Group, Layout


def test_events_are_those_of_the_manager(fenced):
    connector, _ = fenced()
    a = arrive(connector, Request("a", range(8)))
    run(connector, a, [1, 2])
    report(connector, done=[0])
    hashes = a.block_hashes
    assert connector.take_events() == [
        BlockStored([h], None, [], 0, None, "CPU", None, group_idx=0) for h in hashes
    ]
    connector.reset_cache()
    assert connector.take_events() == [BlockRemoved([h], "CPU", group_idx=0) for h in hashes]


def test_events_that_describe_themselves(fenced):
    connector, _ = fenced(self_describing_kv_events=True, blocks_per_chunk=2)
    a = Request("a", range(16))
    a.lora_request, a.cache_salt = SimpleNamespace(lora_name="l", lora_int_id=3), "s"
    connector.on_new_request(a)
    run(connector, a, [1, 2, 3, 4])
    report(connector, done=[0])
    h = a.block_hashes
    kind = {"group_idx": 0, "kv_cache_spec_kind": "full_attention"}
    assert connector.take_events() == [
        BlockStored([h[0], h[1]], None, [*range(8)], 4, 3, "CPU", "l", [("l", "s"), ("l",)], **kind),
        BlockStored([h[2], h[3]], h[1], [*range(8, 16)], 4, 3, "CPU", "l", [("l",), ("l",)], **kind),
    ]
    connector.reset_cache()
    assert connector.take_events() == [
        BlockRemoved([h[0], h[1]], "CPU", group_idx=0),
        BlockRemoved([h[2], h[3]], "CPU", group_idx=0),
    ]
    assert not connector.side._books.events._payloads


class OfImages(OffloadingConnector):
    """For an engine that hashes images, too: its rows of them are (identifier, first token)."""

    @classmethod
    def hash_extras(cls, request, tokens):
        return tuple((name, at - tokens.start) for name, at in request.images if at in tokens) or None


def test_a_connector_for_another_engine_says_what_its_hashes_cover(fenced):
    """It is asked block by block, of full blocks and of the part of one that a tail is."""
    connector, _ = fenced(self_describing_kv_events=True, blocks_per_chunk=2, connector_class=OfImages)
    a = Request("a", range(16))
    a.images = [("cat", 5), ("dog", 7), ("cat", 12)]
    connector.on_new_request(a)
    run(connector, a, [1, 2, 3, 4])
    report(connector, done=[0])
    assert [event.extra_keys for event in connector.take_events()] == [
        [None, (("cat", 1), ("dog", 3))],
        [None, (("cat", 0),)],
    ]


def test_what_found_no_room_is_not_kept_in_mind(fenced):
    connector, manager = fenced(self_describing_kv_events=True)
    manager.capacity = 1
    a = arrive(connector, Request("a", range(9)))
    run(connector, a, [1, 2, 3])
    assert [*connector.side._books.events._payloads] == [key(a, 0)]


def test_what_is_loaded_is_described_as_it_was_when_it_was_stored(fenced):
    connector, _ = fenced(self_describing_kv_events=True, blocks_per_chunk=2)
    a, b = Request("a", range(8)), Request("b", range(9))
    connector.on_new_request(a)
    run(connector, a, [1, 2])
    report(connector, done=[0])
    assert [event.block_hashes for event in connector.take_events()] == [a.block_hashes]
    connector.on_new_request(b)
    assert connector.get_num_new_matched_tokens(b, 0) == (8, True)
    begin_load(connector, b, [3, 4], 8)
    report(connector, done=[1])
    connector.reset_cache()
    assert connector.take_events() == [BlockRemoved(a.block_hashes, "CPU", group_idx=0)]


GROUPS = (Group(0, FULL, 4, 1, 1), Group(1, WINDOW, 4, 1, 1, 8), Group(2, STATE, 4, 1, 1))
A = Request("a", range(8))


def translator(is_describing=True):
    """One that knows what a request's first two chunks hold."""
    translating = EventTranslator(Layout(GROUPS, 4, 4), hash_extras, is_describing=is_describing)
    for group in GROUPS:
        translating.note(A, group, range(2), [key(A, chunk, group=group.group_id) for chunk in range(2)])
    return translating


def told(translating, chunks, medium=Medium.CPU, **event):
    """What becomes of one event; the chunks are (number, group)."""
    keys = [key(A, chunk, group=group) for chunk, group in chunks]
    events = translating.translate([OffloadingEvent(keys, medium, **event)])
    translating.check()
    return events


@pytest.mark.parametrize("is_describing", [True, False])
def test_each_group_is_told_as_it_is(is_describing):
    h = A.block_hashes
    kinds = ("full_attention", "sliding_window", "state_space") if is_describing else (None, None, None)
    first = ([0, 1, 2, 3], 4) if is_describing else ([], 0)
    extras = [None] if is_describing else None
    expected = [
        BlockStored([h[0]], None, *first, None, "CPU", None, extras, group_idx=0, kv_cache_spec_kind=kinds[0]),
        BlockStored([h[0]], None, [], 0, None, "CPU", None, group_idx=1, kv_cache_spec_kind=kinds[1]),
        BlockStored([h[0]], None, [], 0, None, "CPU", None, group_idx=2, kv_cache_spec_kind=kinds[2]),
    ]
    expected[1].kv_cache_spec_sliding_window = 8 if is_describing else None
    translating = translator(is_describing)
    assert told(translating, [(0, 0), (0, 1), (0, 2)], removed=False) == expected
    assert told(translating, [(0, 0), (0, 1), (1, 0), (1, 1)], removed=True) == [
        BlockRemoved(h, "CPU", group_idx=0),
        BlockRemoved(h, "CPU", group_idx=1),
    ]


def test_who_changes_an_event_changes_no_other():
    translating = translator()
    for _ in range(2):
        (stored,) = told(translating, [(1, 0)], removed=False)
        assert (stored.block_hashes, stored.token_ids) == ([A.block_hashes[1]], [*range(4, 8)])
        assert stored.extra_keys == [None]
        stored.block_hashes.clear()
        stored.token_ids.clear()
        stored.extra_keys.clear()


def test_what_left_and_came_back_at_once_is_told_with_its_tokens():
    translating, (chunk,) = translator(), [key(A, 1)]
    told(translating, [(1, 0)], removed=False)
    events = [OffloadingEvent([chunk], Medium.CPU, removed=removed) for removed in (True, False)]
    left, back = translating.translate(events)
    assert left == BlockRemoved([A.block_hashes[1]], "CPU", group_idx=0)
    assert (back.block_hashes, back.token_ids) == ([A.block_hashes[1]], [*range(4, 8)])
    told(translating, [(1, 0)], removed=True)
    assert chunk not in translating._payloads


@pytest.mark.parametrize(
    ("locality", "name"), [(None, None), (Locality.LOCAL, "disk"), (Locality.REMOTE, "far"), (None, "near")]
)
def test_events_say_of_which_tier_they_are(locality, name):
    tier = {"locality": locality, "ownership": name}
    named = {"locality": locality and str(locality.value), "ownership": name}
    h = A.block_hashes
    described = {"group_idx": 0, "kv_cache_spec_kind": "full_attention", **named}
    translating = translator()
    assert told(translating, [(1, 0)], Medium.STORAGE, removed=False, **tier) == [
        BlockStored([h[1]], h[0], [4, 5, 6, 7], 4, None, "STORAGE", None, [None], **described)
    ]
    assert told(translating, [(1, 0)], Medium.STORAGE, removed=True, **tier) == [
        BlockRemoved([h[1]], "STORAGE", group_idx=0, **named)
    ]


def test_a_chunk_is_known_until_it_has_left_its_last_tier():
    wide = EventTranslator(Layout((Group(0, FULL, 4, 2, 2),), 4, 4), hash_extras, is_describing=True)
    (whole,) = keys = [key(A, 0, per_chunk=2)]

    def tell(medium, removed, **more):
        return [event.block_hashes for event in wide.translate([OffloadingEvent(keys, medium, removed, **more)])]

    placeholder, hashes = [A.block_hashes[1:]], [A.block_hashes]
    assert tell(Medium.CPU, False) == placeholder
    wide.note(A, Group(0, FULL, 4, 2, 2), [0], keys)
    assert tell(Medium.STORAGE, False, ownership="disk") == hashes
    wide.note(A, Group(0, FULL, 4, 2, 2), [0], keys)  # by another request
    assert tell(Medium.CPU, True) == placeholder  # as it was told
    wide.forget([whole])
    assert tell(Medium.CPU, False) == hashes
    assert tell(Medium.CPU, True, metadata_only=True) == []
    assert tell(Medium.STORAGE, True, ownership="disk") == hashes
    assert tell(Medium.CPU, False) == placeholder


def test_what_nobody_described_is_told_as_a_placeholder_of_its_kind():
    nobodys = EventTranslator(Layout(GROUPS, 4, 4), hash_extras, is_describing=True)
    event, of_window = told(nobodys, [(1, 0), (1, 1)], removed=False)
    assert event == BlockStored(
        [A.block_hashes[1]], None, [], 0, None, "CPU", None, group_idx=0, kv_cache_spec_kind="full_attention"
    )
    assert (of_window.kv_cache_spec_kind, of_window.kv_cache_spec_sliding_window) == ("sliding_window", 8)


def test_a_tail_is_noted_once():
    a, group = Request("a", range(15), per_hash=2), Group(0, FULL, 8, 1, 4)
    a.cache_salt = "s"
    tails = EventTranslator(Layout((group,), 2, 8), hash_extras, is_describing=True)
    (tail,) = keys = [key(a, 5)]
    described = {"group_idx": 0, "kv_cache_spec_kind": "full_attention"}
    events = []
    for removed in (False, True):
        tails.note_tail(a, group, 12, tail)
        tails.note_tail(a, GROUPS[2], 12, key(a, 5, group=2))  # a state has nothing to be described
        events += tails.translate([OffloadingEvent(keys, Medium.CPU, removed)])
    h = a.block_hashes
    assert events == [
        BlockStored(h[4:6], h[3], [8, 9, 10, 11], 2, None, "CPU", None, [None, None], **described),
        BlockRemoved(h[4:6], "CPU", group_idx=0),
    ]
    assert not tails._payloads


def test_who_wants_no_events_keeps_nothing_for_them(fenced):
    connector, _ = fenced(events=False, self_describing_kv_events=True)
    a = arrive(connector, Request("a", range(8)))
    run(connector, a, [1, 2])
    assert not connector.side._books.events._payloads


def test_of_a_store_that_failed_nothing_is_kept(fenced):
    connector, _ = fenced(self_describing_kv_events=True)
    for number, failed in enumerate(([0], [])):
        request = arrive(connector, Request(f"r{number}", range(8)))
        run(connector, request, [1, 2])
        report(connector, done=[number], failed=failed)
        assert len(connector.side._books.events._payloads) == 2 * number
