"""With a vLLM: the schedulers agree, a planted fault of the engine model is found, the contract is vLLM's."""

import pytest

from kv_sim.engine.pool import BlockPool
from kv_sim.engine.scheduler import Scheduler
from kv_vllm.__main__ import main
from kv_vllm.installed import vllm_version

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(autouse=True)
def needs_vllm():
    pytest.importorskip("vllm")


@pytest.mark.parametrize("is_async", ["no", "yes"])
def test_the_engines_agree(is_async, capsys):
    subjects = ["--subject", "later,memory"]  # fewer than the usual ones, so there are no minima to meet
    assert main(["differential", *subjects, "--seeds", "0-14", "--async", is_async]) == 0
    assert "histories agree" in capsys.readouterr().out


@pytest.mark.parametrize("cell", [("no", "1"), ("yes", "2")], ids="async={0[0]} runner={0[1]}".format)
def test_the_engines_agree_beside_connectors_that_do_more(cell, capsys):
    """Some hold blocks in the pool, and beside kv-p2p the world forgets some; a few histories of each."""
    is_async, runner = cell
    subjects = "p2p,p2p+offload,p2p-two-engines,offload,offload-held,offload-evicted,layerwise"
    arguments = ["--subject", subjects, "--seeds", "0-11", "--async", is_async, "--runner", runner]
    assert main(["differential", *arguments]) == 0
    assert "diverging" not in capsys.readouterr().out


def one_cell(capsys):
    code = main(["differential", "--seeds", "0-14", "--async", "yes", "--runner", "2"])
    return code, capsys.readouterr().out


def test_an_engine_that_frees_in_another_order_is_found(capsys, monkeypatch):
    free = BlockPool.free
    monkeypatch.setattr(BlockPool, "free", lambda self, blocks: free(self, list(blocks)[::-1]))
    code, text = one_cell(capsys)
    assert (code, "diverging:" in text, "blocks[0]" in text) == (1, True, True)


def test_an_engine_that_frees_too_early_is_found(capsys, monkeypatch):
    monkeypatch.setattr(Scheduler, "blocks_can_be_freed", lambda self, request: True)
    code, text = one_cell(capsys)
    assert (code, "diverging:" in text) == (1, True)


def test_the_contract_has_not_drifted(capsys):
    assert main(["drift"]) == 0
    assert " 0 others" in capsys.readouterr().out


def test_a_member_that_vllm_grows_is_drift(capsys, monkeypatch):
    vllm_version()
    base = pytest.importorskip("vllm.distributed.kv_transfer.kv_connector.v1.base")
    monkeypatch.setattr(base.KVConnectorBase_V1, "get_more", lambda self: None, raising=False)
    assert main(["drift"]) == 1
    text = capsys.readouterr().out
    assert "DRIFT     KVConnectorBase_V1.get_more: missing here" in text
    assert "DRIFT     contract of KVConnectorBase_V1.get_more: missing here" in text
