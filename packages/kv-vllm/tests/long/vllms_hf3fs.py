"""vLLM's HF3FSKVConnector under the testbed, without a GPU and without a 3FS. Run by the session ``vllm-long``.

``kv_vllm_hf3fs`` has what it needs of both, and ``kv_vllm_hf3fs_mended`` a variant without the mistakes that are
shown here. ``docs/others/hf3fs.md`` tells of them.
"""

import itertools
import json
import signal
from dataclasses import replace

import kv_vllm_hf3fs
import pytest
from kv_vllm_hf3fs import SIGNALS, Failing, OnCpu
from kv_vllm_hf3fs_mended import ForgetsNoTable, Mended
from kv_vllm_hf3fs_server import SERVERS
from kv_vllm_short_histories import comes, loads_in_history, rests, settles, what_is_wrong
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1
from vllm.distributed.kv_transfer.kv_connector.v1.hf3fs import hf3fs_connector
from vllm.distributed.kv_transfer.kv_connector.v1.hf3fs.hf3fs_connector import HF3FSKVConnector

from kv_sim.actions import Action, Kind
from kv_sim.cli.main import main as kv_sim
from kv_sim.config import WorldConfig
from kv_sim.subject import Subject, Trait
from kv_sim.violation import Invariant
from kv_sim.world import World

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]

CONFIG = WorldConfig(engine="vllm", prefix_caching=False)
SETTINGS = {"hf3fs_storage_path": "{folder}"}
HF3FS = Subject(OnCpu.__name__, OnCpu.__module__, SETTINGS, traits=frozenset())
MENDED = replace(HF3FS, kv_connector=Mended.__name__, module_path=Mended.__module__)
PLACES = frozenset({Trait.RANKS, Trait.ZEROING, Trait.RESET})
STEP = Action(Kind.STEP)
PREEMPT = Action(Kind.RESET, {"running": True, "connector": False})


def found_in(actions, config=CONFIG, subject=HF3FS, *, without=(), **settings):
    """What is wrong when everything has come to rest after these. A function gets the world."""
    told = replace(subject, extra_config={**SETTINGS, **settings})
    return what_is_wrong(told, config, actions, without=without)


STORED = [comes("r1"), rests]
LOADS = [*STORED, comes("r2"), STEP]


def test_what_was_stored_is_loaded():
    loads = []

    def is_loading(world):
        loads.extend(world.engine.devices[0].copies.running)
        return True

    assert found_in([*LOADS, is_loading]) is None
    assert len(loads) == 2


def test_who_ends_while_it_is_loaded_is_freed_twice_and_that_ends_the_engine():
    """It says of each request that it holds it, and vLLM holds one that is being loaded besides."""
    history = [*LOADS, Action(Kind.ABORT, {"request": "r2"})]
    found = found_in(history)
    assert found.startswith("PROTOCOL  request r2: request_finished holds its blocks for a store while its load")
    found = found_in(history, without=[Invariant.PROTOCOL])
    assert found.startswith("NO-CRASH  vLLM, update_from_output: AssertionError: "), found
    assert "_update_from_kv_xfer_finished" in found
    assert found_in(history, subject=MENDED) is None


def test_another_models_kv_is_loaded():
    """Blocks are named by tokens alone, and one server knows of those of two models."""
    subject = replace(MENDED, shares_store=True, engines=2)
    config = replace(CONFIG, engines=2, stranger="model")
    found = found_in([*STORED, comes("r2", engine=1)], config, subject)
    assert found.startswith("CONTENT  engine 1 request r2 token 0: rank 0 block"), found
    assert "holds token 0 of request r1, of another model" in found
    found = found_in([*STORED, comes("r2", engine=1)], replace(config, stranger="dtype"), subject)
    assert "holds token 0 of request r1, of another data type" in found
    assert found_in([*STORED, comes("r2", engine=1)], replace(config, stranger="none"), subject) is None


@pytest.mark.parametrize("whose", [{"adapter": "s"}, {"salt": "s"}], ids=["adapter", "salt"])
def test_another_ones_kv_is_loaded(whose):
    """Blocks are named by tokens alone."""
    history = [*STORED, comes("r2", **whose)]
    found = found_in(history)
    assert found.startswith("CONTENT  request r2 token 0: rank 0 block "), found
    assert found_in(history, subject=MENDED) is None


def test_who_resumes_is_stored_from_blocks_that_it_had():
    """With runner V1 its new table is put behind the one that it had."""
    lacks = replace(MENDED, kv_connector=ForgetsNoTable.__name__)
    config = replace(CONFIG, num_blocks=48)
    history = [comes("r1", 41), STEP, settles, STEP, settles, PREEMPT, rests, comes("r2", 41)]
    found = found_in(history, config, subject=lacks)
    assert found.startswith("CONTENT  request r2 token "), found
    assert "last written by load copy" in found
    assert found_in(history, replace(config, runner=2), subject=lacks) is None
    assert found_in(history, config, subject=MENDED) is None


def test_what_is_being_stored_of_one_that_is_preempted_is_overwritten():
    """Nobody waits for it: ``handle_preemptions`` is that of the base class."""
    assert HF3FSKVConnector.handle_preemptions is KVConnectorBase_V1.handle_preemptions
    history = [comes("r1", 9, 4), STEP, PREEMPT, comes("r2", 9, 1, 1), STEP, STEP]
    found = found_in(history)
    assert found.startswith(
        "OWNERSHIP  rank 0 block 1 (of request r1): step 2 computes into it while store copy 0"
    )
    assert found_in(history, subject=MENDED) is None


# -- what a file system or a server may do -----------------------------------------------------


def fail(client, offsets, *said):
    """What a client says when nothing came of it."""
    return [-1] * len(offsets)


def test_a_load_that_fails_is_taken_for_one_that_succeeded(monkeypatch):
    monkeypatch.setattr(Failing, "batch_read", fail)
    config = replace(CONFIG, failure_policy="fail")
    found = found_in(LOADS, config)
    assert found.startswith("CONTENT  request r2 token 0: rank 0 block "), found
    assert "holds poison, not written since it was allocated" in found
    assert found_in(LOADS, config, subject=MENDED) is None


PAGE = CONFIG.block_size * 8 * CONFIG.layers
TEN_PAGES = {"hf3fs_file_size": 10 * PAGE}


def test_the_page_of_a_block_that_could_not_be_written_again_is_given_to_another(monkeypatch):
    """Of two that store the same one the second gets its page; that is released, and the block is still found."""
    write, calls = Failing.batch_write, itertools.count()

    def second_fails(client, *said):
        return (fail if next(calls) == 1 else write)(client, *said)

    monkeypatch.setattr(Failing, "batch_write", second_fails)
    config = replace(CONFIG, max_step_tokens=64)
    others = [comes("r3", 8 * CONFIG.block_size + 1, conversation=1), rests, comes("r4", conversation=2), rests]
    history = [comes("r1"), comes("r2"), rests, *others, comes("r5")]
    found = found_in(history, config, **TEN_PAGES)
    assert found.startswith("CONTENT  request r5 token 0: rank 0 block "), found
    assert "last written by load copy" in found
    assert found_in(history, config, subject=MENDED, **TEN_PAGES) is None


def pages_of(history, subject=HF3FS, config=CONFIG, **settings):
    """How many pages of the first rank's file are taken, and of how many blocks the server knows."""
    assert found_in([*history, rests], config, subject, **settings) is None
    [server] = SERVERS.values()
    pages = server.state.rank_metadata[0]
    return pages.num_pages - len(pages.free_pages), len(server.state.key_metadata)


def test_a_page_that_a_block_has_no_more_stays_taken():
    """Of two that store the same one may have another page before the other rank has stored it, too."""
    both = [comes("r1"), comes("r2")]
    two = replace(CONFIG, tp_size=2)
    assert pages_of(both, config=two) == (3, 2)
    assert pages_of(both, MENDED, two) == (2, 2)
    assert pages_of(both) == (2, 2)


def test_what_the_server_does_not_confirm_stays_taken(monkeypatch):
    def fails(self, *said):
        raise RuntimeError("no more")

    monkeypatch.setattr(kv_vllm_hf3fs.Client, "confirm_write_for_keys", fails)
    assert pages_of(STORED) == (2, 0)


def test_of_a_file_that_is_full_nothing_is_ever_evicted():
    more = [part for number in range(1, 9) for part in (comes(f"r{number}", conversation=number), rests)]
    assert pages_of(more, **TEN_PAGES) == (10, 10)


def test_pipeline_stages_share_a_file_and_their_pages(monkeypatch):
    """Each takes its number among tensor parallel ranks for its own, and all stages have the same there."""
    history, two = [*STORED, comes("r2")], replace(CONFIG, pp_size=2)
    assert found_in(history, two) is None
    monkeypatch.setattr(hf3fs_connector, "get_tensor_model_parallel_rank", lambda: 0)
    found = found_in(history, two)
    assert found.startswith("CONTENT  request r2 token 0: rank "), found


# -- how it begins and ends --------------------------------------------------------------------


def test_nobody_ends_it():
    """The class has no ``shutdown``. Its ``close`` is for signals and the end of the process."""
    assert HF3FSKVConnector.shutdown is KVConnectorBase_V1.shutdown
    world = World(CONFIG, replace(HF3FS, kv_connector="Unended"))
    manager = world.engine.connectors[0]._async_manager
    world.break_off(None)
    threads = [manager._save_thread, manager._load_thread]
    assert [thread.is_alive() for thread in threads] == [True, True]
    manager.shutdown()
    assert [thread.is_alive() for thread in threads] == [False, False]


def test_it_takes_signals_from_the_engine():
    """Which has its own handlers set by then, and doesn't hear that it should end."""
    SIGNALS.clear()
    assert found_in([]) is None
    assert SIGNALS == [signal.SIGINT, signal.SIGTERM, signal.SIGQUIT] * 2


def test_it_asks_another_server_than_it_was_told_to():
    """Of the one setting nothing is read but to be kept."""
    urls = []

    def posts(world):
        urls.extend(one._metadata_client.base_url for one in world.engine.connectors)
        return True

    assert found_in([posts], hf3fs_metadata_server_url="http://elsewhere:18000") is None
    assert urls == ["http://localhost:18000"] * 2


# -- everything else holds ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("traits", "settings"),
    [
        (PLACES, {}),
        (PLACES, {"lags": 3}),
        (PLACES, {"fails": 4}),
        (frozenset({Trait.KEEPS}), {}),
        (frozenset(), TEN_PAGES),
    ],
    ids=["plain", "late", "failing", "keeps", "full"],
)
def test_without_these_it_holds(traits, settings):
    subject = replace(MENDED, traits=traits, extra_config={**SETTINGS, **settings})
    assert sum(loads_in_history(subject, seed) for seed in range(12)) > 10


@pytest.mark.parametrize("mistake", ["waits for no step", "has always ended", "waits for no load"])
def test_a_copy_out_of_order_would_be_seen(mistake, monkeypatch):
    """So what holds is shown: without any of what orders its copies it breaks."""
    if mistake == "waits for no step":
        monkeypatch.setattr(kv_vllm_hf3fs.Stream, "wait_event", lambda stream, event: None)
    elif mistake == "has always ended":
        monkeypatch.setattr(kv_vllm_hf3fs.ClientStream, "wait_event", lambda event: None)
    else:
        monkeypatch.setattr(kv_vllm_hf3fs.Stream, "synchronize", lambda stream: None)
    found = found_in([*STORED, comes("r2")])
    assert found.startswith(("OWNERSHIP  ", "CONTENT  ")), found


def test_the_command(capsys):
    typed = ["--connector", "kv_vllm_hf3fs_mended:Mended", "--extra", json.dumps(SETTINGS), "--histories", "3"]
    assert kv_sim(["fuzz", *typed, "--engine", "vllm"]) == 0
    assert "Mended: 3 histories, " in capsys.readouterr().out
