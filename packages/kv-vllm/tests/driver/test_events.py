"""What connectors of vLLM's own announce is heard."""

from hashlib import sha256
from types import SimpleNamespace

import pytest

pytest.importorskip("kv_sim")

from kv_api import AllBlocksCleared, BlockRemoved, BlockStored
from kv_sim.checkers.accounting import Mirror
from kv_sim.engine.request_spec import RequestSpec
from kv_sim.violation import Referee, Violation
from kv_vllm.driver.events import EventReader
from kv_vllm.driver.ledger import Twin


def twin():
    """A request with a hash for each four tokens."""
    made = Twin(RequestSpec("a", 0, 10, 0, 1, 1), 4, 64)
    made.take_hashes(lambda tokens: [sha256(bytes(end)).digest() for end in range(len(tokens) // 4)])
    return made


def of_vllm(kind, **values):
    """An event of a class that has a name in common with kv-api's, and nothing else."""
    return type(kind, (SimpleNamespace,), {})(**values)


def test_events_are_of_our_classes_and_name_blocks_by_whole_hashes():
    request, reader = twin(), EventReader()
    (first, _, _), (second, _, tokens) = [*request.all_blocks()][:2]
    reader.know(request)
    ends_in_zeroes = b"h" + bytes(8)
    turns = ([first], [first, ends_in_zeroes])
    reader.know(SimpleNamespace(stories=[SimpleNamespace(block_hashes=hashes) for hashes in turns]))
    by_end = [int.from_bytes(name[-8:]) for name in (first, second)]
    told = {"token_ids": tokens, "block_size": 4, "lora_id": None, "medium": "CPU", "lora_name": None}
    events = [
        of_vllm("BlockStored", block_hashes=by_end[1:], parent_block_hash=by_end[0], **told, of_their_own=1),
        of_vllm("BlockStored", block_hashes=[second, 7], parent_block_hash=first, **told),
        of_vllm("BlockStored", block_hashes=by_end, parent_block_hash=None, **told),
        of_vllm("BlockStored", block_hashes=[0], parent_block_hash=0, **told),
        of_vllm("BlockRemoved", block_hashes=by_end, medium="CPU"),
        of_vllm("AllBlocksCleared"),
        BlockRemoved([by_end[0]], "CPU"),
        "something else",
    ]
    assert [*reader.read(events)] == [
        BlockStored([second], first, **told),
        BlockStored([second, 7], first, **told),
        BlockStored([first, second], None, **told),
        BlockStored([ends_in_zeroes], ends_in_zeroes, **told),
        BlockRemoved([first, second], "CPU"),
        AllBlocksCleared(),
        *events[-2:],
    ]


@pytest.mark.vllm
@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("a_vllm")
@pytest.mark.parametrize("by_the_end", ["0", "1"])
def test_it_is_what_the_testbed_would_have_heard_of_its_own(by_the_end, monkeypatch):
    """However vLLM is set to tell of a block. Of an unknown one it stays as it is."""
    from vllm.distributed import kv_events
    from vllm.v1.core.kv_cache_utils import maybe_convert_block_hash

    monkeypatch.setenv("VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES", by_the_end)
    request = twin()
    (first, _, _), (second, _, tokens) = [*request.all_blocks()][:2]
    told = [maybe_convert_block_hash(name) for name in (first, second)]
    reader, mirror = EventReader(), Mirror(Referee(), is_exact=True)
    reader.know(request)
    mirror.know(request)
    stored = kv_events.BlockStored([told[1]], told[0], tokens, 4, None, "CPU", None, group_idx=0)
    for gone in (kv_events.BlockRemoved([told[1]], "CPU", group_idx=0), kv_events.AllBlocksCleared()):
        mirror.take(reader.read([stored]))
        assert mirror.blocks == {("CPU", 0, second): 1}
        mirror.take(reader.read([gone]))
        assert not mirror.blocks
    ours = [BlockRemoved([first], "CPU"), "something else"]
    assert [*reader.read([*ours, kv_events.BlockRemoved([7], None)])] == [*ours, BlockRemoved([7], None)]
    with pytest.raises(Violation, match="an event for blocks"):
        mirror.take(reader.read([kv_events.BlockStored([told[1]], None, tokens, 4, None, "CPU", None)]))
