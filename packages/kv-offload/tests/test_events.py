"""KV events: what is told is what is there."""

from types import SimpleNamespace

from kv_offload_calls import report, run
from kv_offload_configs import Request

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
