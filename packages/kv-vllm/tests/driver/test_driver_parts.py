"""What the driver has of its own: errors that say where they come from, its books, and their recount."""

from importlib.util import find_spec
from types import SimpleNamespace
from unittest.mock import MagicMock, call

import pytest

pytest.importorskip("kv_sim")

import kv_api
from kv_api import BlockRemoved, BlockStored
from kv_sim.checkers.accounting import Mirror
from kv_sim.checkers.served import Served
from kv_sim.config import WorldConfig
from kv_sim.engine.request import Status
from kv_sim.engine.request_spec import RequestSpec, Turn
from kv_sim.guard import HistoryEnds, NotCreated
from kv_sim.memory.shadow import Shadow
from kv_sim.subject import OF_SEVERAL, Trait
from kv_sim.violation import Invariant, Referee, Violation
from kv_sim.violation import TestbedError as OwnError  # pytest takes it for a test
from kv_vllm.driver.crash import crashes
from kv_vllm.driver.ledger import Ledger, Twin
from kv_vllm.driver.subjects import OUR_SUBJECTS, offloading, ours
from kv_vllm.driver.view import BlocksView, Ended, SchedulerView


def broken(error):
    raise error


def raised(error, *, without=(), **options):
    """What an error of vLLM's becomes."""
    referee = Referee()
    referee.switched_off |= set(without)
    with pytest.raises(Exception) as found, crashes(referee, "schedule", **options):  # noqa: PT011 - any
        broken(error)
    return found.value


LINE = broken.__code__.co_firstlineno + 1
SAID = f"vLLM, schedule: ValueError: no such block (test_driver_parts.py:{LINE} in broken)"


def test_an_error_of_vllms_is_a_violation_that_says_where_it_was_raised():
    violation = raised(ValueError("no such block"))
    assert (type(violation), str(violation)) == (Violation, f"NO-CRASH  {SAID}")
    assert type(raised(ValueError("no such block"), raises=NotCreated)) is NotCreated


def test_who_ends_the_process_is_no_better():
    assert str(raised(SystemExit(0))).startswith("NO-CRASH  vLLM, schedule: SystemExit: 0 (test_driver_parts.py:")


def test_where_crashes_are_no_matter_the_history_ends():
    end = raised(ValueError("no such block"), without=[Invariant.NO_CRASH])
    assert (type(end), str(end)) == (HistoryEnds, SAID)
    assert type(raised(ValueError("no such block"), without=[Invariant.CONTENT])) is Violation


@pytest.mark.parametrize(
    "error", [Violation(Invariant.CONTENT, "x"), HistoryEnds("x"), OwnError("x"), RuntimeError("x")], ids=repr
)
def test_what_is_no_crash_is_let_through(error):
    assert raised(error, but=RuntimeError) is error


def ended(name, computed=4):
    """A request of vLLM's that stopped."""
    status = SimpleNamespace(name="FINISHED_STOPPED")
    return SimpleNamespace(
        request_id=name,
        status=status,
        num_computed_tokens=computed,
        num_output_tokens=1,
        num_preemptions=0,
        num_stale_output_tokens=0,
    )


@pytest.fixture
def ledger():
    referee = Referee()
    made = Ledger(WorldConfig(), referee, Shadow(1, referee), Served(referee, 4, is_on=False), Mirror(referee))
    made.twins = {name: Twin(RequestSpec(name, 0, 10, 0, 1, 1), 4, 64) for name in "abcdefgh"}
    return made


def test_a_twin_follows_its_request(ledger):
    request = ended("a", computed=7)
    request.num_output_tokens, request.num_preemptions, request.num_stale_output_tokens = 2, 3, 4
    ledger.follow({"b": ended("b"), "a": request})
    assert [*ledger.twins] == ["b", "a"]
    twin = ledger.twins["a"]
    assert twin.status is Status.FINISHED_STOPPED
    assert (twin.num_computed_tokens, twin.num_output_tokens) == (7, 2)
    assert (twin.num_preemptions, twin.num_stale_output_tokens) == (3, 4)


@pytest.mark.parametrize(("prompt_tokens", "turn"), [(10, 0), (13, 1), (15, 2)])
def test_a_twin_is_in_the_turn_that_its_request_is_in(ledger, prompt_tokens, turn):
    """Of a session of which all turns have arrived: vLLM begins each when the one before has stopped."""
    twin = Twin(RequestSpec("a", 0, 10, 0, 1, 1, turns=(Turn(3, 1, 1), Turn(2, 1, 1))), 4, 64)
    twin.turns_arrived = 2
    request = ended("a")
    request.num_prompt_tokens = prompt_tokens
    twin.follow(request)
    assert twin.turn == turn


def test_who_arrives_is_in_the_books_with_vllms_hashes(ledger):
    """Here of half a block each. Events may name them by their ends."""
    twin = Twin(RequestSpec("z", 0, 10, 0, 1, 1), 4, 64, hashes_per_block=2)
    hashes = [bytes([end] * 9) for end in range(32)]
    twin.take_hashes(lambda tokens: hashes[: len(tokens) // twin.tokens_per_hash])
    assert (twin.tokens_per_hash, twin.block_hashes, len(twin.future)) == (2, hashes[:5], 64)
    ledger.arrived(twin)
    assert ledger.twins["z"] is twin
    event = type("BlockStored", (SimpleNamespace,), {})
    told = {"token_ids": [], "block_size": 4, "lora_id": None, "medium": "CPU", "lora_name": None}
    end = int.from_bytes(hashes[3][1:])
    ledger.announced([event(block_hashes=[end], parent_block_hash=None, **told)])
    assert list(ledger._mirror.blocks) == [("CPU", None, hashes[3])]


def test_who_has_blocks_of_any_group_has_tables():
    tables = {"a": ([1], []), "b": ([], []), "c": ([2], [3, 4])}
    manager = SimpleNamespace(get_block_ids=tables.get)
    view = BlocksView(SimpleNamespace(kv_cache_manager=manager, requests=tables))
    assert {name: tuple(table.groups) for name, table in view.tables.items()} == {
        "a": ([1], []),
        "c": ([2], [3, 4]),
    }


@pytest.mark.parametrize(
    ("local", "external", "loaded"),
    [(4, 0, []), (4, 1, [2, 6]), (6, 2, [2, 6]), (6, 3, [2, 3, 6]), (3, 1, [1, 5])],
)
@pytest.mark.parametrize("is_async", [True, False])
def test_what_a_load_may_write_is_known_at_the_allocation(ledger, local, external, loaded, is_async):
    """Also of a load that begins or ends within a block. Block 0 is none."""
    shadow = ledger._shadow
    ledger.begin_step()
    ledger.matched("a", local, (external, is_async))
    ledger._parts = [1, 1]  # of a world with two groups
    ledger.allocated("a", ([1, 2, 3], [5, 6, 0]), external)
    assert [shadow.owner(block) for block in (1, 3, 6, 4)] == ["request a"] * 3 + ["no request"]
    if is_async:
        assert (ledger.async_targets, ledger.sync_targets) == (loaded, {})
        assert (shadow.load_rights, shadow.step_rights) == (dict.fromkeys(loaded, "a"), {})
    else:
        assert (ledger.async_targets, ledger.sync_targets) == ([], {"a": loaded} if external else {})
        assert (shadow.load_rights, shadow.step_rights) == ({}, dict.fromkeys(loaded, 1))
    assert ledger.twins["a"].awaits_load == (is_async and external > 0)
    ledger.begin_step()
    assert (ledger.async_targets, ledger.sync_targets) == ([], {})


def test_new_blocks_that_are_still_in_use_are_poisoned_if_no_load_fills_them(ledger):
    ledger.begin_step()
    for name, table, match in (("a", [1, 2], (4, True)), ("b", [3, 4], (4, False))):
        ledger.matched(name, 0, match)
        ledger.allocated(name, (table,), 4)
    ledger.fresh += [5, 4, 2, 1, 5, 6, 3]
    assert ledger.poison([1, 2, 3, 4, 5, 7]) == ([5, 4, 2], [1, 3])


@pytest.mark.parametrize("registers", [None, False, True])
@pytest.mark.parametrize("holds", [False, True])
def test_blocks_are_held_for_a_store_or_for_a_state_that_was_registered(ledger, registers, holds):
    if registers is not None:
        ledger.registered("a", registers)
    ledger.finished(ended("a"), holds)
    assert [(twin.request_id, twin.is_held) for twin in ledger.ended] == [("a", holds or bool(registers))]
    assert ledger.ended[0].status is Status.FINISHED_STOPPED
    ledger.finished(ended("a"), False)
    assert not ledger.ended[-1].is_held, "it was for that end only"


@pytest.mark.vllm
@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("a_vllm")
@pytest.mark.parametrize("answer", [False, True])
def test_whether_a_state_was_registered_is_told_besides(answer):
    from kv_vllm.driver.connector import DrivenConnector

    asked, told = [], []
    connector = object.__new__(DrivenConnector)
    connector.inner = SimpleNamespace(register_finished_partial_tail=lambda *given: asked.append(given) or answer)
    connector._told = SimpleNamespace(registered=lambda *given: told.append(given))
    request = SimpleNamespace(request_id="a")
    assert connector.register_finished_partial_tail(request, [1], "offloads") is answer
    assert (asked, told) == ([(request, [1], "offloads")], [("a", answer)])


@pytest.mark.vllm
@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("a_vllm")
def test_the_books_are_told_of_each_call_that_they_need():
    from kv_vllm.driver.connector import CacheHitSource, DrivenHMAConnector

    connector = object.__new__(DrivenHMAConnector)
    connector.inner, connector._told = guard, told = MagicMock(), MagicMock()
    guard.get_num_new_matched_tokens.return_value = (4, True)
    guard.request_finished.return_value = (True, None)
    guard.request_finished_all_groups.return_value = (False, None)
    guard.take_events.return_value = iter(["event"])
    request, blocks = SimpleNamespace(request_id="a"), SimpleNamespace(get_block_ids=lambda: ([1], [2]))
    assert connector.get_num_new_matched_tokens(request, 8) == (4, True)
    connector.update_state_after_alloc(request, blocks, 4)
    connector.build_connector_meta(SimpleNamespace(kv_connector_block_state="states"))
    assert connector.request_finished(request, [1]) == (True, None)
    assert connector.request_finished_all_groups(request, ([1], [2])) == (False, None)
    assert connector.take_events() == ["event"]
    guard.get_external_cache_hit_sources.return_value = {kv_api.CacheHitSource.HOST: 4}
    [(source, tokens)] = connector.get_external_cache_hit_sources(request, 4).items()
    assert source is CacheHitSource.HOST and tokens == 4
    assert connector.reset_cache() is guard.reset_cache.return_value
    connector.bind_connector_metadata("meta")
    assert told.mock_calls == [
        call.matched("a", 8, (4, True)),
        call.allocated("a", ([1], [2]), 4),
        call.handed_over("states"),
        call.finished(request, True),
        call.finished(request, False),
        call.announced(["event"]),
        call.forgot(guard.reset_cache.return_value),
        call.begins(),
    ]


@pytest.mark.parametrize("holds", [False, True])
def test_blocks_are_not_held_for_a_store_while_a_load_fills_them(ledger, holds):
    ledger.matched("a", 4, (4, True))
    ledger.allocated("a", ([1, 2],), 4)
    if not holds:
        ledger.finished(ended("a"), holds)
        return
    with pytest.raises(Violation, match="PROTOCOL  request a: request_finished holds its blocks") as found:
        ledger.finished(ended("a"), holds)
    assert found.value.invariant is Invariant.PROTOCOL


def test_the_ends_of_prompts_that_a_step_hands_over_are_that_steps(ledger):
    states = {"a": [(1, 9, 6), (1, 8, 4)], "b": [(1, 7, 3)]}
    tables = {"a": ([2, 3], [5, 8]), "b": ([6], [4])}
    for block_state in (None, SimpleNamespace(boundary_state_offloads=None)):
        ledger.handed_over(block_state)
    ledger.handed_over(SimpleNamespace(boundary_state_offloads=states, resolve_block_ids=tables.__getitem__))
    assert ledger.handed == [("a", 3, 2), ("b", 6, 3)]
    ledger.begin_step()
    assert ledger.handed == []
    ledger.begin_step()
    assert ledger.step == 2


def test_what_ended_is_told_in_order(ledger):
    for name in "hgfedcba":
        ledger.matched(name, 0, (4, True))
        ledger.allocated(name, ([ord(name)],), 4)
    output = SimpleNamespace(finished_sending=None, finished_recving={*"hgfedcba"}, failed_recving=None)
    assert {*ledger._shadow.load_rights.values()} == {*"abcdefgh"}
    ledger.judge(output)
    assert (output.finished_sending, [*output.finished_recving]) == (None, [*"abcdefgh"])
    assert ledger._shadow.load_rights == {}, "a load that ended may still write"


def test_only_what_may_be_reported_reaches_vllm(ledger):
    """Where reports are nobody's matter, those that break a rule are left out."""
    ledger._referee.switched_off.add(Invariant.PROTOCOL)
    for name in "fda":
        ledger.finished(ended(name), True)
    output = SimpleNamespace(finished_sending={*"fadbz"}, finished_recving={*"bz"}, failed_recving=None)
    ledger.judge(output)
    assert ([*output.finished_sending], output.finished_recving) == ([*"adf"], None)
    again = SimpleNamespace(finished_sending={"a"}, finished_recving=None, failed_recving=None)
    ledger.judge(again)
    assert again.finished_sending is None, "its end was reported before"


def test_what_is_announced_and_what_is_forgotten_is_in_the_books(ledger):
    stored, gone = BlockStored([b"h", b"g"], None, [], 4, None, "CPU", None), BlockRemoved([b"g"], "CPU")
    ledger.announced([stored, gone])
    assert list(ledger._mirror.blocks) == [("CPU", None, b"h")]
    ledger.finished(ended("a", computed=10), False)
    ledger.follow({"b": ended("b", computed=10)})
    past, present = ledger.ended[0], ledger.twins["b"]
    for answer, resets in ((None, 0), (False, 0), (True, 1)):
        ledger.forgot(answer)
        assert ledger._served.resets == resets
        fair = [ledger._served.is_fair(one) for one in (past, present)]
        assert fair == [not resets] * 2, "of what is stored of it nothing needs to be there any more"


def block(number, count=0):
    return SimpleNamespace(block_id=number, ref_cnt=count, is_null=number == 0)


def view(counts=(9, 2, 1, 1), twins=("r", "q")):
    """Two requests of vLLM's that share block 1, one of which has no block where its window has passed; block 3
    waits to be freed."""
    tables = {"r": ([1, 2], [0, 0]), "q": ([1], [0])}
    manager = SimpleNamespace(
        block_pool=SimpleNamespace(blocks=[block(number, count) for number, count in enumerate(counts)]),
        get_block_ids=tables.__getitem__,
    )
    vllm = SimpleNamespace(
        requests=dict.fromkeys(tables), deferred_frees=[(1, [block(3), block(0)])], kv_cache_manager=manager
    )
    return SchedulerView(vllm, SimpleNamespace(twins=dict.fromkeys(twins)), None)


def test_a_subject_is_told_what_its_connector_is():
    assert {subject.blocks_per_chunk for subject in (ours(), ours(hold_blocks="never"))} == {1}
    held = ours(blocks_per_chunk=3, hold_blocks="always", without=frozenset({Trait.RESET}))
    assert (held.blocks_per_chunk, held.traits) == (3, frozenset(Trait) - OF_SEVERAL - {Trait.RESET})
    assert held.extra_config == ours().extra_config | {"blocks_per_chunk": 3, "hold_blocks": "always"}
    theirs = offloading(offload_prompt_only=False)
    assert theirs.extra_config == offloading().extra_config | {"offload_prompt_only": False}


@pytest.mark.parametrize("subject", [*OUR_SUBJECTS.values(), offloading()], ids=[*OUR_SUBJECTS, "vllms"])
def test_the_modules_of_a_subject_are_there(subject):
    """And so is its medium; looked for, not imported, since that needs vLLM."""
    extra = subject.extra_config
    modules = [subject.module_path, *([extra["spec_module_path"]] if "spec_name" in extra else [])]
    assert all(find_spec(module) for module in modules if module.startswith("kv_vllm."))


@pytest.mark.parametrize("answer", [False, True])
def test_what_checkers_read_of_vllms_scheduler_is_its_own(ledger, answer):
    evicted = []
    manager = SimpleNamespace(
        block_pool=SimpleNamespace(evict_blocks=evicted.append), reset_prefix_cache=lambda: answer
    )
    waiting = [SimpleNamespace(request_id=name) for name in "fb"]
    vllm = SimpleNamespace(
        kv_cache_manager=manager, requests="fcb", kv_holding_waiting=waiting, deferred_frees=["a step's"]
    )
    ledger.begin_step()
    seen = SchedulerView(vllm, ledger, "connector")
    seen.blocks.block_pool.evict_blocks({1, 2})
    assert evicted == [{1, 2}]
    assert seen.blocks.block_pool.reset() is answer
    assert list(seen.requests.items()) == [(name, ledger.twins[name]) for name in "fcb"]
    assert seen.holding == [ledger.twins["f"], ledger.twins["b"]]
    assert (seen.deferred_frees, seen.num_steps, seen.connector) == (["a step's"], 1, "connector")
    ledger.finished(ended("a"), False)
    assert [twin.request_id for twin in Ended(ledger).ended] == ["a"]


def test_a_recount_finds_every_reference():
    view().check()
    view(twins=("q", "r")).check()


@pytest.mark.parametrize("counts", [(9, 1, 1, 1), (9, 2, 1, 0), (9, 2, 2, 1), (9, 2, 1, 1, 1)])
def test_a_recount_finds_what_is_held_by_nobody_or_by_too_many(counts):
    held = {number: count for number, count in enumerate(counts) if number and count}
    with pytest.raises(AssertionError) as found:
        view(counts).check()
    assert str(found.value).startswith(f"references {held} != tables and deferred frees {{1: 2, 2: 1, 3: 1}}")


@pytest.mark.parametrize("twins", [("r",), ("r", "q", "s")])
def test_a_recount_finds_a_request_that_one_of_both_does_not_know(twins):
    with pytest.raises(AssertionError) as found:
        view(twins=twins).check()
    assert str(found.value).startswith(f"twins {[*twins]} != requests ['r', 'q']")
