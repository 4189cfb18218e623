"""vLLM's LMCacheMPConnector with LMCache's server in this process, under the testbed, without a GPU.

Run by the session ``vllm-long``, which installs LMCache. ``kv_vllm_lmcache_mp`` has what it needs of a GPU and of
a network, ``kv_vllm_lmcache_mp_mended`` a variant without the mistakes that are shown here.
``docs/others/lmcache.md`` tells whose they are.
"""

import json
from dataclasses import replace

import kv_vllm_lmcache_mp_mended
import pytest
from kv_vllm_lmcache_mp import OnCpu
from kv_vllm_lmcache_mp_mended import Mended
from kv_vllm_lmcache_server import SERVERS
from kv_vllm_short_histories import comes, rests, settles, what_is_wrong
from lmcache.integration.vllm.lmcache_mp_metadata import LMCacheMPRequestTracker
from vllm.distributed.kv_transfer.kv_connector.v1 import lmcache_mp_connector
from vllm.sampling_params import SamplingParams
from vllm.v1.request import Request

from kv_api import Direction
from kv_sim.actions import Action, Kind
from kv_sim.checkers import at_rest
from kv_sim.cli.main import main as kv_sim
from kv_sim.config import GroupConfig, WorldConfig
from kv_sim.subject import Subject, Trait
from kv_sim.violation import Invariant

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]

CONFIG = WorldConfig(engine="vllm", prefix_caching=False, num_blocks=24, block_size=4, max_step_tokens=64)
LMCACHE = Subject(OnCpu.__name__, OnCpu.__module__, {}, traits=frozenset({Trait.RANKS, Trait.GROUPS, Trait.RESET}))
MENDED = replace(LMCACHE, kv_connector=Mended.__name__, module_path=Mended.__module__)
STEP = Action(Kind.STEP)


def lacks(name):
    """Mended in all but one."""
    name = f"AllBut{name}"
    assert hasattr(kv_vllm_lmcache_mp_mended, name)
    return replace(MENDED, kv_connector=name)


def found_in(actions, config=CONFIG, subject=MENDED, *, without=(), **settings):
    """What is wrong when everything has come to rest after these. A function gets the world."""
    without = [Invariant.CONSERVATION, *without]
    return what_is_wrong(replace(subject, extra_config=settings), config, actions, without=without)


def ends(name):
    """A client goes away."""
    return Action(Kind.ABORT, {"request": name})


def server():
    """That of the world that is there now."""
    [one] = SERVERS.values()
    return one


STORED = [comes("r1", 12), rests]
LOADS = [*STORED, comes("r2", 12), STEP]


def test_the_class_is_lmcaches():
    assert lmcache_mp_connector.LMCacheMPConnector.__module__.startswith("lmcache.")
    assert issubclass(OnCpu, lmcache_mp_connector.LMCacheMPConnector)


@pytest.mark.parametrize("salt", [None, "s"])
def test_what_was_stored_is_loaded_and_by_nobody_with_another_salt(salt):
    loads = []

    def is_loading(world):
        loads.extend(world.engine.devices[0].copies.running.values())
        return True

    assert found_in([*STORED, comes("r2", 12, salt=salt), STEP, is_loading], subject=LMCACHE) is None
    assert [copy.direction is Direction.LOAD for copy in loads] == [salt is None]


def test_what_one_engine_stored_another_loads():
    """They have a server together. Of another model, and of another number of ranks, nothing is loaded."""
    loads = []

    def looks(world):
        loads.append(world.coverage.situations["a load of what another engine stored"])
        return True

    history = [*STORED, comes("r2", 12, engine=1), Action(Kind.STEP, {"engine": 1}), looks]
    for stranger in ("none", "model", "path", "ranks"):
        config = replace(CONFIG, engines=2, role="kv_both", stranger=stranger)
        assert found_in(history, config, replace(MENDED, shares_store=True, engines=2)) is None
    assert loads == [1, 0, 0, 0]


def test_of_which_type_numbers_are_is_in_no_key():
    """The same model in two types loads each other's chunks."""
    config = replace(CONFIG, engines=2, role="kv_both", stranger="dtype")
    history = [*STORED, comes("r2", 12, engine=1)]
    for subject in (LMCACHE, lacks("NamesType")):
        found = found_in(history, config, replace(subject, shares_store=True, engines=2))
        assert found is not None and "of request r1, of another data type" in found, found
    assert found_in(history, config, replace(MENDED, shares_store=True, engines=2)) is None


def test_another_adapters_kv_is_loaded():
    """Its keys have the salt in them, and of the adapter nothing."""
    history = [*STORED, comes("r2", 12, adapter="s")]
    for subject in (LMCACHE, lacks("NamesWhose")):
        found = found_in(history, subject=subject)
        assert found is not None and found.startswith("CONTENT  request r2 token 0: rank 0 block "), found
    assert found_in(history) is None


def test_of_prompts_that_are_embeddings_the_keys_are_the_same():
    """Their tokens are zeroes."""
    torch = lmcache_mp_connector.torch
    keys = []
    for value in (1.0, 2.0):
        embeds = torch.full((12, 4), value)
        request = Request("r1", None, SamplingParams(max_tokens=1), None, prompt_embeds=embeds)
        keys.append(LMCacheMPRequestTracker(request).get_token_ids())
    assert keys == [[0] * 12] * 2


def test_who_ends_while_it_is_loaded_is_freed_twice_and_that_ends_the_engine():
    """It says of each request that it holds it, and vLLM holds one that is being loaded besides."""
    history = [*LOADS, ends("r2")]
    for subject in (LMCACHE, lacks("HoldsOnce")):
        found = found_in(history, subject=subject)
        assert found is not None and found.startswith(
            "PROTOCOL  request r2: request_finished holds its blocks for a store while its load"
        ), found
    found = found_in(history, subject=LMCACHE, without=[Invariant.PROTOCOL])
    assert found is not None and found.startswith("NO-CRASH  vLLM, update_from_output: AssertionError: "), found
    assert "_update_from_kv_xfer_finished" in found
    assert found_in(history) is None


def test_a_prompt_that_is_stored_in_two_parts_is_let_go_when_the_first_is_there():
    """That the first part has been stored is taken for the end of the second."""
    config = replace(CONFIG, max_step_tokens=4, num_blocks=6)
    stored = [comes("r1", 16), STEP, STEP, settles, STEP, STEP]
    history = [*stored, comes("r2", 16, conversation=1), *[STEP] * 5]
    for subject in (LMCACHE, lacks("WaitsForAll")):
        found = found_in(history, config, subject)
        assert found is not None and found.startswith("OWNERSHIP  rank 0 block 4 (of request r2): step "), found
        assert "while store copy 1 (begun for no request) is under way" in found
    assert found_in(history, config) is None


@pytest.mark.parametrize("name", [None, "WaitsForWindows"], ids=str)
def test_what_a_window_has_left_behind_is_given_away_while_it_is_stored(name):
    config = replace(CONFIG, groups=(GroupConfig(), GroupConfig("sliding", 4)), max_step_tokens=16, num_blocks=40)
    history = [comes("r1", 18), STEP, STEP]
    found = found_in(history, config, lacks(name) if name else LMCACHE)
    assert found is not None and found.startswith("OWNERSHIP  rank 0 block "), found
    assert "(of request r1): step 2 computes into it while store copy 1 (begun for request r1)" in found
    assert found_in(history, config) is None


def test_a_chunk_that_ends_without_a_state_is_stored_if_there_was_one_before():
    """A step that goes over the chunk's end leaves no state there; in the chunk's blocks is one from before."""
    groups = (GroupConfig(), GroupConfig("sliding", 4), GroupConfig("state", 2))
    traits = LMCACHE.traits | {Trait.STATES}
    config = replace(CONFIG, groups=groups, block_size=2, max_step_tokens=4, num_blocks=40, prefix_caching=True)
    config = replace(config, hands_over_states=True)
    others = [comes("r1", 4, 2), comes("r2", 5)]
    history = [*others, comes("r3", 17, conversation=1), comes("r4", 9, conversation=1)]
    found = found_in(history, config, replace(lacks("StoresNoHoles"), traits=traits))
    assert found is not None and found.startswith("CONTENT  request r4 token 7: rank 0 block "), found
    assert "last written by load copy" in found
    assert found_in(history, config, replace(MENDED, traits=traits)) is None


@pytest.mark.parametrize("name", [None, "CountsWhatLoads"], ids=str)
def test_what_isnt_computed_yet_is_stored_of_who_reads_no_cache(name):
    """What was found for it counts as computed, and vLLM dropped it: it wants ``prompt_logprobs``."""
    config = replace(CONFIG, block_size=8, max_step_tokens=4)
    asks_for_logprobs = comes("r2", 48, skip_reading_prefix_cache=True)
    history = [comes("r1", 9), rests, asks_for_logprobs, STEP, STEP, STEP, ends("r2"), rests, comes("r3", 48)]
    found = found_in(history, config, lacks(name) if name else LMCACHE, without=[Invariant.HITS])
    assert found is not None and found.startswith("CONTENT  request r3 token 12: rank 0 block "), found
    assert "holds poison" in found
    assert found_in(history, config) is None


def test_an_id_that_comes_again_is_held_for_good():
    """Whose end was told is never forgotten, and never told again."""
    history = [comes("r1", 12), rests, comes("r1", 12)]
    for subject in (LMCACHE, lacks("ForgetsWhoWasTold")):
        found = found_in(history, subject=subject)
        assert found is not None and "r1 stopped 12/13, held, waits for finished_sending" in found, found
    assert found_in(history) is None


def test_ask_again_and_asynchronous_is_said_at_once():
    found = found_in(STORED, subject=LMCACHE, lags=1)
    assert found is not None and found.endswith(
        "answered (None, True), which is 'ask again' and asynchronous at once"
    ), found
    assert found_in(LOADS, lags=1) is None


@pytest.mark.parametrize(
    ("words", "where"),
    [
        (0, "request_finished_all_groups: TypeError"),
        ({"lmcache.max_offload_tokens": "8"}, "build_connector_meta: Ty"),
    ],
    ids=["no object", "no number"],
)
def test_a_client_ends_the_engine_with_its_words(words, where):
    """They are looked into as they are. (An empty one that is no object gets through vLLM's frontend.)"""
    traits = MENDED.traits | {Trait.CLIENTS}
    history = [comes("r1", 12, kv_transfer_params=words)]
    for subject in (LMCACHE, lacks("ChecksWords")):
        found = found_in(history, subject=replace(subject, traits=traits))
        assert found is not None and found.startswith(f"NO-CRASH  scheduler side, {where}"), found
    assert found_in(history, subject=replace(MENDED, traits=traits)) is None


# -- what the server is left with --------------------------------------------------------------


def left(history, subject, config=CONFIG, **settings):
    """Objects that are locked, sessions and lookups, after everything has come to rest."""
    known = []

    def look(world):
        at_rest.check(world)
        objects = server().context.storage_manager._l1_manager.report_status()
        sessions = server().context.session_manager._sessions
        known.append((objects["read_locked_count"], [*sessions], [*server().lookups._prefetch_jobs]))
        return True

    assert found_in([*history, look], config, subject, without=[Invariant.PROTOCOL], **settings) is None
    return known[0]


FULL = replace(CONFIG, num_blocks=8)
WAITS = [*STORED, comes("r2", 17, 8, conversation=2), STEP, comes("r3", 12), STEP]
"""For the last there are no blocks until the one before has ended."""


def test_what_was_looked_up_for_one_that_is_aborted_stays_locked():
    """For five minutes (``read_ttl_seconds``)."""
    history = [*WAITS, ends("r3"), ends("r2")]
    assert left(history, lacks("LetsGo"), FULL) == (1, [], [])
    assert left(history, MENDED, FULL) == (0, [], [])


def test_a_lookup_whose_answer_nobody_takes_stays():
    """For good; and what it found stays locked."""
    assert left([*STORED, comes("r2", 12), STEP, ends("r2")], MENDED, lags=2) == (1, [], ["r2"])


def test_a_store_after_the_end_begins_a_session_that_nobody_ends():
    """For ten minutes (``DEFAULT_SESSION_TTL``)."""
    assert left([comes("r1", 8), Action(Kind.SCHEDULE), ends("r1"), STEP], MENDED) == (0, ["r1"], [])


# -- the server gone ---------------------------------------------------------------------------


def is_cut_off(world):
    """It doesn't answer, and a heartbeat finds that out. What is under way goes on."""
    server().is_gone = True
    return beats(world)


def is_back(world):
    """It answers."""
    server().is_gone = False
    return beats(world)


def restarts(world):
    """It is another one, which has nothing."""
    server().begin()
    return True


def beats(world):
    """A heartbeat of each connector."""
    for heartbeat in server().heartbeats:
        heartbeat._execute()
    return True


def test_what_is_under_way_with_a_server_that_doesnt_answer_counts_as_ended():
    """It may only be slow: its copies go on, in blocks that are somebody else's."""
    config = replace(CONFIG, failure_policy="fail")
    other = [comes("r3", 12, conversation=1), STEP, STEP]
    found = found_in([*LOADS, is_cut_off, STEP, *other], config)
    assert found is not None and "(of request r3): step " in found and "while load copy 1 (begun for" in found, (
        found
    )
    found = found_in([comes("r1", 12), STEP, is_cut_off, STEP, *other], config)
    assert found is not None and "(of request r3): step " in found and "while store copy 0 (begun" in found, found


def test_a_server_that_restarts_between_two_heartbeats_keeps_nothing_more():
    """It answers one of whom it doesn't know, so nobody registers again."""
    keeps = replace(MENDED, traits=MENDED.traits | {Trait.KEEPS})
    found = found_in([*STORED, restarts, beats, comes("r2", 12)], subject=keeps)
    assert found is not None and found.startswith("HITS  request r1 is repeated at rest: 0 of its 12 tokens are")
    noticed = [is_cut_off, restarts, is_back]
    assert found_in([*STORED, *noticed, comes("r2", 12)], subject=keeps) is None


RESET = Action(Kind.RESET, {"running": True, "connector": True})


def test_what_was_looked_up_outlives_a_reset_that_says_it_was_done():
    """It is locked, and the answer is True all the same."""
    history = [*STORED, comes("r2", 12), STEP, RESET]
    found = found_in(history, subject=lacks("AnswersForAll"), lags=2)
    told = "no request with the same prefix, salt, adapter and images has computed block 0 of its tokens"
    assert found == f"HITS  request r2: get_num_new_matched_tokens(…, 0) found 8 tokens, but {told} since reset 1"
    assert found_in(history, lags=2) is None


# -- hunts -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("traits", "settings"),
    [
        ("none", {}),
        ("none", {"room": 8}),
        ("none", {"lmcache.mp.save_decode_cache": True}),
        ("ranks,zeroing,reset", {"lags": 1}),
        ("groups,states", {"lags": 2}),
        ("clients", {}),
    ],
    ids=str,
)
def test_nothing_else_is_found(traits, settings, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    asked = [
        "--engine",
        "vllm",
        "--connector",
        f"{Mended.__module__}:Mended",
        "--traits",
        traits,
        "--histories",
        "20",
    ]
    code = kv_sim(["fuzz", *asked, "--extra", json.dumps(settings), "--without", "GEOMETRY"])
    assert code == 0, capsys.readouterr().out
