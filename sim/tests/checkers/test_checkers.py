"""Each checker fires in a minimal situation made by hand, says where, and is silent when switched off."""

import re
from collections.abc import Callable
from dataclasses import replace

import kv_sim_breaches as breaches
import kv_sim_lies as lies
import pytest
from kv_sim_breaches import rest, world

from kv_api import Direction
from kv_sim.checkers.work import check_waits
from kv_sim.guard import HistoryEnds
from kv_sim.memory.copy import Copy
from kv_sim.memory.shadow import Shadow
from kv_sim.violation import Invariant, Referee, Violation

I = Invariant  # noqa: E741 - it stands in a table

ANY = "***"
"""What a message says there depends on hashes, on where a line stands, or on pytest."""
ASKED = "request r1: get_num_new_matched_tokens(…, "
NOT_COMPUTED = "but no request with the same prefix, salt, adapter and images has computed block 0 of its tokens"

SITUATIONS: tuple[tuple[Invariant, Callable[[Referee], None], str], ...] = (
    (
        I.CONTENT,
        breaches.wrong_bytes,
        "request r1 token 2: rank 0 block 1 holds 0x***, last written by step 1 for request r1 "
        "(group 0, layer 0, step 2)",
    ),
    (
        I.OWNERSHIP,
        breaches.a_step_writes_under_a_store,
        "rank 0 block 3 (of no request): step 2 computes into it while store copy 0 (begun for no "
        "request) is under way",
    ),
    (
        I.OWNERSHIP,
        breaches.a_load_without_right,
        "rank 0 block 3 (of no request): load copy 0 writes it, but no load into it is under way: none "
        "was announced, or it has ended",
    ),
    (I.CONSERVATION, breaches.a_block_that_stays, "GPU blocks [5, 7] (of no request, request r1) are never freed"),
    (
        I.CONSERVATION,
        breaches.a_load_right_that_stays,
        "the end of the loads of requests ['r8', 'r9'] was never reported",
    ),
    (
        I.CONSERVATION,
        breaches.a_name_that_stays,
        "request r1 has ended, everything is at rest, and "
        "MemoryConnector._scheduler._later[…]['jobs'][…] still remembers it",
    ),
    (
        I.CONSERVATION,
        breaches.books_that_are_wrong,
        "at rest, MemoryScheduler.check() fails: free 61 + in use 2 != 64, or one counts twice***",
    ),
    (
        I.CONSERVATION,
        breaches.books_that_are_wrong_for_a_while,
        "at rest, MemoryScheduler.check() fails: until it forgets***",
    ),
    (
        I.CONSERVATION,
        breaches.books_that_a_reset_at_rest_leaves_wrong,
        "at rest, MemoryScheduler.check() fails: free 61 + in use 2 != 64, or one counts twice***",
    ),
    (
        I.LIVENESS,
        breaches.a_load_that_is_never_reported,
        "after 400 steps without new work these requests are left: <request r1 waiting for a load 4/9>, "
        "<request r2 waiting for a load 4/9>",
    ),
    (
        I.LIVENESS,
        breaches.a_hold_that_never_ends,
        "after 400 steps without new work these requests are left: "
        "<request r1 at its limit 9/10, held, waits for finished_sending>",
    ),
    (
        I.LIVENESS,
        breaches.work_that_never_ends,
        "after 400 steps without new work no request is left, but the engine has to go on",
    ),
    (
        I.NO_CRASH,
        breaches.a_connector_that_raises,
        "scheduler side, reset_cache: KeyError: 'nowhere' (kv_sim_breaches.py:*** in "
        "a_connector_that_raises.<locals>.Clumsy.reset_cache)",
    ),
    (
        I.NO_CRASH,
        breaches.reports_that_cannot_be_joined,
        "what the workers report, joined: KeyError: 'nowhere' (kv_sim_breaches.py:*** in "
        "reports_that_cannot_be_joined.<locals>.join)",
    ),
    (
        I.NO_CRASH,
        breaches.events_that_cannot_be_read,
        "scheduler side, the events of take_events: KeyError: 'nowhere' (kv_sim_breaches.py:*** in "
        "events_that_cannot_be_read.<locals>.events)",
    ),
    (
        I.PROTOCOL,
        breaches.more_than_there_is,
        ASKED + "4) answered (8, False), but at most 4 of its 9 tokens can be loaded: a load within the step "
        "leaves a token to compute",
    ),
    (
        I.PROTOCOL,
        breaches.an_asynchronous_nothing,
        ASKED + "0) answered (0, True), which is an asynchronous load of 0 tokens",
    ),
    (
        I.PROTOCOL,
        breaches.no_count,
        ASKED + "0) answered ('4', False), whose first part is neither an int of 0 or more nor None",
    ),
    (I.PROTOCOL, breaches.no_pair, ASKED + "0) answered 4, which is no pair (tokens, is asynchronous)"),
    (
        I.PROTOCOL,
        breaches.a_load_of_nobody,
        "request r9: finished_recving reports the end of its load, but the engine has no such request any more",
    ),
    (
        I.PROTOCOL,
        breaches.a_store_that_nobody_waits_for,
        "request r1: finished_sending reports the end of its store, but its blocks are not held",
    ),
    (
        I.PROTOCOL,
        breaches.a_hold_while_it_loads,
        "request r1: request_finished holds its blocks for a store while its load is under way; "
        "whichever is reported first frees them",
    ),
    (
        I.PROTOCOL,
        breaches.failed_blocks_of_several_groups,
        "get_block_ids_with_load_errors reports blocks, but there are several KV cache groups: report the "
        "requests in failed_recving",
    ),
    (
        I.HITS,
        lies.a_hit_that_nobody_computed,
        f"{ASKED}0) found 4 tokens, {NOT_COMPUTED}",
    ),
    (
        I.HITS,
        lies.a_hit_from_before_a_reset,
        f"{ASKED}0) found 8 tokens, {NOT_COMPUTED} since reset 1",
    ),
    (
        I.HITS,
        lies.a_block_that_was_lost,
        "request r1 is repeated at rest: 4 of its 9 tokens are found, but earlier requests computed the "
        "first 8 and "
        "ended well, no copy failed, and there was room for all: at most 2 of 64 host slots were needed",
    ),
    (
        I.HITS,
        lies.a_reset_that_lies,
        f"{ASKED}0) found 8 tokens, {NOT_COMPUTED} since reset 1",
    ),
    (
        I.ACCOUNTING,
        lies.sources_that_do_not_add_up,
        "request r1: 8 tokens are loaded, but get_external_cache_hit_sources answered {'host': 4}",
    ),
    (
        I.ACCOUNTING,
        lies.a_source_of_nothing,
        "request r1: 8 tokens are loaded, but get_external_cache_hit_sources answered {'host': 8, 'disk': 0}",
    ),
    (
        I.ACCOUNTING,
        lies.stats_that_arrive_as_others,
        "stats {'loads': 3} become {'loads': 0} by to_dict and build_kv_connector_stats",
    ),
    (
        I.ACCOUNTING,
        lies.removed_and_never_stored,
        "an event removes block b'x' of group None from CPU, but no event has stored it there",
    ),
    (
        I.ACCOUNTING,
        lies.found_and_not_announced,
        "request r1 is repeated at rest: block 0 of its prompt is found, but according to the "
        "events so far it is not stored",
    ),
    (
        I.ACCOUNTING,
        lies.announced_and_not_found,
        "request r1 is repeated at rest: block 0 of its prompt is not found, but according to the "
        "events so far it is stored",
    ),
    (
        I.ACCOUNTING,
        lies.announced_twice,
        "an event stores block b***of group None in CPU, but an earlier event stored it, and no event has "
        "removed it since",
    ),
    (
        I.ACCOUNTING,
        lies.tokens_of_another_block,
        "an event for blocks [b***] has (parent, tokens, block size, adapter) (b***, [***, ***, "
        "***, ***], 4, None), expected (b***, [***, ***, ***, ***], 4, None)",
    ),
    (
        I.ACCOUNTING,
        lies.bytes_that_are_not_counted,
        "vllm:kv_offload_store_size_sum adds up to 32, but 1 store copies that succeeded moved 64 bytes",
    ),
    (
        I.ACCOUNTING,
        breaches.bytes_that_are_not_counted_at_rest,
        "vllm:kv_offload_load_bytes adds up to ***, but *** load copies that succeeded moved *** bytes",
    ),
    (
        I.ACCOUNTING,
        lies.a_share_that_stays_in_use,
        "no job is under way, but these gauges are not all 0: "
        "{'vllm:kv_offload_cpu_cache_usage_perc': 0.0, "
        "'vllm:kv_offload_cpu_cache_write_usage_perc': 0.0, "
        "'vllm:kv_offload_cpu_cache_read_usage_perc': 0.25}",
    ),
    (
        I.ACCOUNTING,
        lies.a_whole_that_is_not_its_parts,
        "the first of these metrics should be the sum of the others: {'vllm:kv_offload_cpu_cache_usage_perc': "
        "0.5, 'vllm:kv_offload_cpu_cache_write_usage_perc': 0, "
        "'vllm:kv_offload_cpu_cache_read_usage_perc': 0}",
    ),
    (
        I.HITS,
        lies.what_was_just_used_is_gone,
        "request r0 is repeated at rest: 0 of its first 8 tokens are found, but r0 and new requests of 2 chunks "
        "were the last to be computed, and all of them fit in 4 host slots",
    ),
    (
        I.CONSERVATION,
        lies.half_a_connector,
        "at rest, 1 of 2 objects of FlakyScheduler and its workers are switched off, expected all or none",
    ),
    (I.GEOMETRY, lies.ranks_that_differ, "ranks 0 and 1 disagree: a store of block 9 ran on one of them only"),
    (I.GEOMETRY, lies.a_slot_that_is_not_there, "rank 0: store copy 0 uses host slot 4 of 4"),
    (
        I.WORK,
        lies.ask_again_for_ever,
        "request r1: get_num_new_matched_tokens answered 'ask again' 61 times in a row",
    ),
)
each = pytest.mark.parametrize(
    ("invariant", "situation", "words"), SITUATIONS, ids=lambda v: getattr(v, "__name__", "")
)


@each
def test_it_fires_and_says_where(invariant: Invariant, situation: Callable[[Referee], None], words: str) -> None:
    with pytest.raises(Violation) as caught:
        situation(Referee())
    assert caught.value.invariant is invariant
    anything = ".*".join(map(re.escape, words.split(ANY)))
    assert re.fullmatch(anything, caught.value.message, re.DOTALL), caught.value.message
    assert str(caught.value) == f"{invariant}  {caught.value.message}"


@each
def test_it_is_silent_when_switched_off(
    invariant: Invariant, situation: Callable[[Referee], None], words: str
) -> None:
    referee = Referee()
    referee.switched_off.add(invariant)
    if invariant is I.NO_CRASH:
        with pytest.raises(HistoryEnds, match="KeyError"):
            situation(referee)
    else:
        situation(referee)


def test_every_checker_has_a_situation() -> None:
    assert {invariant for invariant, _, _ in SITUATIONS} == set(Invariant)


def test_the_engine_recounts_its_own_books_at_rest() -> None:
    made = world(Referee())
    made.engine.devices[0].copies.ended.append(Copy(7, Direction.STORE, (), "", 0))
    with pytest.raises(AssertionError, match="1 copies, 0 submitted"):
        rest(made)


def test_who_waits_for_a_copy_in_which_one_block_is_loaded_asynchronously_waits_for_that() -> None:
    owners = ("request r1", "request r2")
    shadow, copy = Shadow(1, Referee()), Copy(7, Direction.LOAD, ((3, 0), (5, 1)), "", 0, owners=owners)
    check_waits(0, "start_load_kv", [copy], shadow, Referee())
    shadow.load_rights[5] = "r1"
    check_waits(0, "start_load_kv", [replace(copy, direction=Direction.STORE)], shadow, Referee())
    check_waits(0, "get_transfer_results", [copy], shadow, Referee(), {"r1"})
    with pytest.raises(Violation) as raised:
        check_waits(0, "start_load_kv", [copy], shadow, Referee(), {"r2"})
    assert str(raised.value) == (
        "WORK  worker 0 side, start_load_kv waited for load copy 7 (of request r1, request r2), which is "
        "asynchronous: the engine computes nothing meanwhile"
    )
