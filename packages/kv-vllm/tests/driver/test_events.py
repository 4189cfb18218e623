"""What connectors of vLLM's own announce is heard."""

from hashlib import sha256

import pytest

pytest.importorskip("kv_sim")

from kv_api import BlockRemoved
from kv_sim.checkers.accounting import Mirror
from kv_sim.engine.request_spec import RequestSpec
from kv_sim.violation import Referee, Violation
from kv_vllm.driver.events import EventReader
from kv_vllm.driver.ledger import Twin

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("a_vllm")]


@pytest.mark.parametrize("by_the_end", ["0", "1"])
def test_it_is_what_the_testbed_would_have_heard_of_its_own(by_the_end, monkeypatch):
    """However vLLM is set to tell of a block. Of an unknown one it stays as it is."""
    from vllm.distributed import kv_events
    from vllm.v1.core.kv_cache_utils import maybe_convert_block_hash

    monkeypatch.setenv("VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES", by_the_end)
    twin = Twin(RequestSpec("a", 0, 10, 0, 1, 1), 4, 64)
    twin.take_hashes(lambda tokens: [sha256(bytes(end)).digest() for end in range(len(tokens) // 4)])
    (first, _, _), (second, _, tokens) = [*twin.all_blocks()][:2]
    told = [maybe_convert_block_hash(name) for name in (first, second)]
    reader, mirror = EventReader(), Mirror(Referee(), is_exact=True)
    reader.know(twin)
    mirror.know(twin)
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
