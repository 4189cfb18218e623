"""KV events: what is told is what is there."""

from types import SimpleNamespace

from kv_offload_calls import report, run
from kv_offload_configs import Blocks, Request, step

from kv_api import (
    BlockRemoved,
    BlockStored,
)


def test_events_are_those_of_the_manager(fenced):
    connector, _ = fenced()
    a = Request("a", range(8))
    connector.on_new_request(a)
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
    a.lora_request = SimpleNamespace(lora_name="l", lora_int_id=3)
    connector.on_new_request(a)
    run(connector, a, [1, 2, 3, 4])
    report(connector, done=[0])
    h = a.block_hashes
    kind = {"group_idx": 0, "kv_cache_spec_kind": "full_attention"}
    assert connector.take_events() == [
        BlockStored([h[0], h[1]], None, [*range(8)], 4, 3, "CPU", "l", **kind),
        BlockStored([h[2], h[3]], h[1], [*range(8, 16)], 4, 3, "CPU", "l", **kind),
    ]
    connector.reset_cache()
    assert connector.take_events() == [
        BlockRemoved([h[0], h[1]], "CPU", group_idx=0),
        BlockRemoved([h[2], h[3]], "CPU", group_idx=0),
    ]
    assert not connector.side._books.events._payloads


def test_what_is_loaded_is_described_as_it_was_when_it_was_stored(fenced):
    connector, _ = fenced(self_describing_kv_events=True, blocks_per_chunk=2)
    a, b = Request("a", range(8)), Request("b", range(9))
    connector.on_new_request(a)
    run(connector, a, [1, 2])
    report(connector, done=[0])
    assert [event.block_hashes for event in connector.take_events()] == [a.block_hashes]
    connector.on_new_request(b)
    assert connector.get_num_new_matched_tokens(b, 0) == (8, True)
    connector.update_state_after_alloc(b, Blocks([3, 4]), 8)
    connector.build_connector_meta(step())
    report(connector, done=[1])
    connector.reset_cache()
    assert connector.take_events() == [BlockRemoved(a.block_hashes, "CPU", group_idx=0)]
