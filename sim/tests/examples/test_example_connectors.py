"""What the examples answer, call by call: what is found, what is copied where, and what becomes of failures."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from kv_api import Direction, KVConnectorOutput
from kv_sim.config import WorldConfig
from kv_sim.examples.catalogue import HOLDING, LATER, LAYERWISE, MEMORY, PATIENT
from kv_sim.examples.later import FailedStores, Jobs, LaterScheduler
from kv_sim.examples.memory import MemoryScheduler
from kv_sim.examples.patient import Ended, PatientScheduler, Plan
from kv_sim.examples.progress import ProgressBook
from kv_sim.subject import Subject
from kv_sim.world import World

BLOCK = 4
NOTHING = SimpleNamespace(
    finished_req_ids=set(),
    scheduled_new_reqs=[],
    scheduled_cached_reqs=SimpleNamespace(
        req_ids=[], new_block_ids=[], num_computed_tokens=[], resumed_req_ids=set()
    ),
    num_scheduled_tokens={},
)


def side_of(subject: Subject, host_slots: int = 4, world_size: int = 1) -> Any:
    config = WorldConfig(block_size=BLOCK, host_slots=host_slots, tp_size=world_size)
    return World(config, subject).engine.connectors[-1].side  # type: ignore[attr-defined]


def request(name: str, blocks: str, computed: int = 0, more: int = 1) -> Any:
    """A request whose full blocks have these hashes, with some tokens more than fill them."""
    return SimpleNamespace(
        request_id=name,
        block_hashes=[letter.encode() for letter in blocks],
        num_tokens=BLOCK * len(blocks) + more,
        num_computed_tokens=computed,
        all_token_ids=list(range(BLOCK * len(blocks) + more)),
        lora_request=None,
        cache_salt=None,
    )


def in_blocks(*tables: list[int]) -> Any:
    return SimpleNamespace(get_block_ids=lambda: tables)


def starting(name: str, *tables: list[int], computed: int = 0, tokens: int) -> Any:
    """A step that begins a request."""
    new = SimpleNamespace(req_id=name, block_ids=tables, num_computed_tokens=computed)
    return SimpleNamespace(**vars(NOTHING) | {"scheduled_new_reqs": [new], "num_scheduled_tokens": {name: tokens}})


def going_on(
    name: str, computed: int, tokens: int, *tables: list[int], resumed: bool = False, finished: str = ""
) -> Any:
    """A step that goes on with a request, or resumes it."""
    cached = SimpleNamespace(
        req_ids=[name],
        new_block_ids=[tables or None],
        num_computed_tokens=[computed],
        resumed_req_ids={name} if resumed else set(),
    )
    step = {"scheduled_cached_reqs": cached, "num_scheduled_tokens": {name: tokens}}
    return SimpleNamespace(**vars(NOTHING) | step | {"finished_req_ids": {*finished}})


# LaterConnector


@pytest.fixture
def later() -> LaterScheduler:
    side: LaterScheduler = side_of(LATER)
    return side


def stored(side: LaterScheduler, name: str, blocks: str, *, fails: bool = False) -> Any:
    """A request ends, and its store does; the pages that were copied."""
    side.request_finished(request(name, blocks, BLOCK * len(blocks)), list(range(10, 10 + len(blocks))))
    pages = side.build_connector_meta(NOTHING).stores.get(name)
    if pages is not None:
        meta = FailedStores({name}) if fails else None
        side.update_connector_output(KVConnectorOutput(finished_sending={name}, kv_connector_worker_meta=meta))
    side.check()
    return pages


def test_later_finds_what_has_landed(later: LaterScheduler) -> None:
    assert later.request_finished(request("a", "xyz", 12), [5, 6, 7, 8]) == (True, None)
    assert later.build_connector_meta(NOTHING).stores == {"a": [(5, 3), (6, 2), (7, 1)]}
    assert later.build_connector_meta(NOTHING).stores == {}
    assert later.get_num_new_matched_tokens(request("b", "xyz"), 0) == (0, False)
    assert later.has_pending_push_work()
    later.update_connector_output(KVConnectorOutput(finished_sending={"a"}))
    assert not later.has_pending_push_work()
    asked = [("xyz", 0, 12), ("xyz", 4, 8), ("xyz", 6, 8), ("xyz", 12, 0), ("xyw", 0, 8), ("wyz", 0, 0)]
    for blocks, local, found in asked:
        assert later.get_num_new_matched_tokens(request("b", blocks), local) == (found, found > 0)
    assert stored(later, "c", "xyz") is None, "all of it is there"
    assert stored(later, "d", "xyzw") == [(13, 0)]


def test_later_stores_only_what_was_computed(later: LaterScheduler) -> None:
    for name, computed, more, pages in [("a", 11, 1, 2), ("b", 12, 0, 2), ("c", 13, 1, 3)]:
        blocks = [name + letter for letter in "xyz"]
        side: Any = side_of(LATER)
        one = request(name, "xyz", computed, more)
        one.block_hashes = [block.encode() for block in blocks]
        assert side.request_finished(one, [5, 6, 7]) == (True, None)
        assert len(side.build_connector_meta(NOTHING).stores[name]) == pages


def test_later_loads_what_it_found_and_pins_it_meanwhile(later: LaterScheduler) -> None:
    stored(later, "a", "xyz")
    one = request("b", "xyz")
    assert later.get_num_new_matched_tokens(one, 4) == (8, True)
    later.update_state_after_alloc(one, in_blocks([20, 21, 22]), 8)
    assert later.build_connector_meta(NOTHING).loads == {"b": [(21, 2), (22, 1)]}
    assert later.has_pending_push_work()
    assert later.request_finished(one, [20, 21, 22]) == (False, None)
    assert stored(later, "c", "pqr") == [(10, 0), (11, 3)], "what is loaded stays"
    later.update_connector_output(KVConnectorOutput(finished_recving={"b"}))
    later.check()
    assert not later.has_pending_push_work()
    assert later.get_num_new_matched_tokens(request("d", "xyz"), 0) == (0, False), "x had to go"
    assert stored(later, "d", "stuv") == [(10, 2), (11, 1), (12, 0), (13, 3)]


def test_later_forgets_what_failed(later: LaterScheduler) -> None:
    assert len(stored(later, "a", "xyz", fails=True)) == 3
    assert later.get_num_new_matched_tokens(request("b", "xyz"), 0) == (0, False)
    assert len(stored(later, "b", "wxyz")) == 4, "nothing of it is kept"
    one = request("c", "wxyz")
    later.get_num_new_matched_tokens(one, 4)
    later.update_state_after_alloc(one, in_blocks([20, 21, 22, 23]), 8)
    ended = KVConnectorOutput(finished_recving={"c"})
    ended.failed_recving = {"c"}
    later.update_connector_output(ended)
    later.check()
    assert later.get_num_new_matched_tokens(request("d", "wxyz"), 0) == (4, True)
    assert len(stored(later, "d", "wxyz")) == 2


def test_later_after_a_reset(later: LaterScheduler) -> None:
    stored(later, "a", "x")
    one = request("b", "x")
    later.get_num_new_matched_tokens(one, 0)
    later.update_state_after_alloc(one, in_blocks([20]), 4)
    later.request_finished(request("c", "yz", 8), [30, 31])
    assert later.reset_cache()
    later.check()
    for blocks in ("x", "yz"):
        assert later.get_num_new_matched_tokens(request("d", blocks), 0) == (0, False)
    assert len(stored(later, "e", "xyz")) == 1, "three slots are in use"
    later.update_connector_output(KVConnectorOutput(finished_sending={"c"}, finished_recving={"b"}))
    later.check()
    assert len(stored(later, "f", "pqr")) == 3


def test_what_failed_on_any_rank_failed() -> None:
    both = FailedStores({"a"}).aggregate(FailedStores({"b"}))
    assert both == FailedStores({"a", "b"})
    ended = Ended({1: 1, 2: 1}, {1}, {5}).aggregate(Ended({2: 1, 3: 1}, {3}, {6}))
    assert ended == Ended({1: 1, 2: 2, 3: 1}, {1, 3}, {5, 6})


# PatientConnector


def patient_stored(side: PatientScheduler, name: str, blocks: str) -> tuple[Any, int]:
    side.on_new_request(request(name, blocks))
    plan = side.build_connector_meta(starting(name, list(range(10, 10 + len(blocks))), tokens=BLOCK * len(blocks)))
    side.check()
    return plan.stores, plan.store_id


def said(stores: dict[int, int], failed: set[int] = frozenset(), slots: set[int] = frozenset()) -> Any:  # type: ignore[assignment]
    return KVConnectorOutput(kv_connector_worker_meta=Ended(stores, {*failed}, {*slots}))


def answer(side: PatientScheduler, blocks: str, computed: int = 0, more: int = 1) -> tuple[int | None, bool]:
    """What is said at last; first one has to ask again, also twice in a step."""
    one = request("asks", blocks, more=more)
    for _ in range(2):
        assert side.get_num_new_matched_tokens(one, computed) == (None, False)
    side.build_connector_meta(NOTHING)
    found: tuple[int | None, bool] = side.get_num_new_matched_tokens(one, computed)
    side.request_finished(one, [])
    return found


def test_patient_finds_what_all_workers_have_stored() -> None:
    side: PatientScheduler = side_of(PATIENT, world_size=2)
    assert patient_stored(side, "a", "xyz") == ([(10, 3), (11, 2), (12, 1)], 0)
    assert side.has_pending_push_work()
    side.update_connector_output(said({0: 1}))
    assert answer(side, "xyz") == (0, False)
    assert patient_stored(side, "b", "xyz")[0] == [], "it is being stored"
    side.update_connector_output(said({0: 1}))
    assert not side.has_pending_push_work()
    asked = [("xyz", 0, 1, 12), ("xyz", 0, 0, 8), ("xyz", 4, 1, 8), ("xyz", 7, 1, 8), ("xyw", 0, 1, 8)]
    for blocks, computed, more, found in asked:
        assert answer(side, blocks, computed, more) == (found, False)
    assert patient_stored(side, "c", "xyzwv") == ([(13, 0), (14, 3)], 1), "x had to go"
    assert answer(side, "xyz") == (0, False)


def test_patient_loads_into_the_blocks_behind_what_is_there() -> None:
    side: PatientScheduler = side_of(PATIENT)
    patient_stored(side, "a", "xyz")
    side.update_connector_output(said({0: 1}))
    one = request("b", "xyz")
    side.get_num_new_matched_tokens(one, 4)
    side.build_connector_meta(NOTHING)
    assert side.get_num_new_matched_tokens(one, 4) == (8, False)
    side.update_state_after_alloc(one, in_blocks([20, 21, 22]), 8)
    side.on_new_request(request("c", "pqr"))
    plan = side.build_connector_meta(starting("c", [30, 31, 32], tokens=12))
    assert (plan.loads, plan.stores) == ([(21, 2), (22, 1)], [(30, 0), (31, 3)]), "what is loaded stays"
    assert side.build_connector_meta(NOTHING).loads == []


def test_patient_forgets_what_failed() -> None:
    side: PatientScheduler = side_of(PATIENT, world_size=2)
    patient_stored(side, "a", "xy")
    side.update_connector_output(said({0: 2}, failed={0}))
    side.check()
    assert answer(side, "xy") == (0, False)
    assert patient_stored(side, "b", "xyz") == ([(10, 2), (11, 3), (12, 1)], 1)
    side.update_connector_output(said({1: 2}))
    assert answer(side, "xyz") == (12, False)
    side.update_connector_output(said({}, slots={3}))
    side.check()
    assert answer(side, "xyz") == (4, False), "y's load failed"
    assert patient_stored(side, "c", "xyz")[0] == [(11, 3)]


def test_patient_keeps_nothing_that_was_computed_on_a_failed_load() -> None:
    """Whoever's load it was: of that step, from the first such block on. It is stored when it is computed anew."""
    side: PatientScheduler = side_of(PATIENT, host_slots=8)
    for name, blocks in (("a", "xyzw"), ("b", "uv")):
        side.on_new_request(request(name, blocks))
    side.build_connector_meta(starting("a", [10], tokens=4))
    side.update_connector_output(said({0: 1}))
    assert len(side.build_connector_meta(going_on("a", 4, 12, [11, 12, 13])).stores) == 3
    side.update_connector_output(replace(said({}), invalid_block_ids={12, 13, 99}))
    side.update_connector_output(replace(said({1: 1}), invalid_block_ids={13}))
    side.check()
    assert [block for block, _ in side.build_connector_meta(going_on("a", 8, 8)).stores] == [12, 13]
    assert answer(side, "xyzw") == (8, False)
    side.update_connector_output(said({2: 1}))
    side.build_connector_meta(starting("b", [14, 15], tokens=8))
    side.update_connector_output(replace(said({3: 1}), invalid_block_ids={12}))  # none of this step's
    assert answer(side, "xyzw") == (16, False)
    assert answer(side, "uv") == (8, False)


# MemoryConnector


def test_memory_finds_what_was_planned_and_evicts_the_oldest() -> None:
    side: MemoryScheduler = side_of(MEMORY)
    side.on_new_request(request("a", "xyz"))
    plan = side.build_connector_meta(starting("a", [10, 11], tokens=9))
    assert (plan.loads, plan.stores) == ([], [(3, (10,)), (2, (11,))])
    assert side.build_connector_meta(going_on("a", 9, 4, [12])).stores == [(1, (12,))]
    for blocks, computed, more, found in [("xyz", 0, 1, 12), ("xyz", 0, 0, 8), ("xyz", 5, 1, 8), ("wyz", 0, 1, 0)]:
        assert side.get_num_new_matched_tokens(request("b", blocks, more=more), computed) == (found, False)
    one = request("b", "xyzwv")
    assert side.get_num_new_matched_tokens(one, 4) == (8, False)
    side.update_state_after_alloc(one, in_blocks([20, 21, 22]), 8)
    side.on_new_request(one)
    plan = side.build_connector_meta(starting("b", [20, 21, 22, 23, 24], computed=12, tokens=9))
    assert (plan.loads, plan.stores) == ([(2, (21,)), (1, (22,))], [(0, (23,)), (3, (24,))])
    side.check()
    events: list[Any] = side.take_events()
    told = [(type(event).__name__, event.block_hashes) for event in events]
    assert told == [
        *(("BlockStored", [letter]) for letter in (b"x", b"y", b"z", b"w")),
        ("BlockRemoved", [b"x"]),
        ("BlockStored", [b"v"]),
    ]
    stored = [event for event, (kind, _) in zip(events, told, strict=True) if kind == "BlockStored"]
    assert [(event.parent_block_hash, event.token_ids, event.block_size) for event in stored] == [
        (parent, list(range(4 * index, 4 * index + 4)), BLOCK)
        for index, parent in enumerate((None, b"x", b"y", b"z", b"w"))
    ]
    assert side.reset_cache()
    [event] = side.take_events()
    assert [*event.block_hashes] == [b"y", b"z", b"w", b"v"]  # type: ignore[attr-defined]
    assert side.get_num_new_matched_tokens(request("c", "yz"), 0) == (0, False)


def test_memory_keeps_nothing_that_was_computed_on_anothers_failed_load() -> None:
    """Of that step, from the first such block of a request on; it is stored when it is computed anew."""
    side: MemoryScheduler = side_of(MEMORY, host_slots=8)
    for name, blocks in (("a", "xyzw"), ("b", "uv")):
        side.on_new_request(request(name, blocks))
    side.build_connector_meta(starting("a", [10], tokens=4))
    assert len(side.build_connector_meta(going_on("a", 4, 12, [11, 12, 13])).stores) == 3
    side.update_connector_output(KVConnectorOutput())
    side.update_connector_output(KVConnectorOutput(invalid_block_ids={12, 13, 99}))
    side.update_connector_output(KVConnectorOutput(invalid_block_ids={12}))
    side.check()
    *_, event = side.take_events()
    assert [*event.block_hashes] == [b"z", b"w"]  # type: ignore[attr-defined]
    assert side.get_num_new_matched_tokens(request("c", "xyzw"), 0) == (8, False)
    assert [page for _, page in side.build_connector_meta(going_on("a", 8, 8)).stores] == [(12,), (13,)]
    side.build_connector_meta(starting("b", [14, 15], tokens=8))
    side.update_connector_output(KVConnectorOutput(invalid_block_ids={12}))  # none of this step's
    assert side.get_num_new_matched_tokens(request("d", "xyzw"), 0) == (16, False)
    assert side.get_num_new_matched_tokens(request("e", "uv"), 0) == (8, False)


def test_memory_stores_no_block_that_is_nobodys() -> None:
    side: MemoryScheduler = side_of(MEMORY)
    side.on_new_request(request("a", "xyz"))
    assert side.build_connector_meta(starting("a", [10, 0, 12], tokens=12)).stores == [(3, (10,)), (2, (12,))]


# Their workers


class Copies:
    """Notes what is copied and waited for; every copy has ended when it is asked for, well or not."""

    def __init__(self, success: bool) -> None:
        self.success = success
        self.told: list[tuple[Any, ...]] = []
        self.ended: list[Any] = []

    def open(self) -> "Copies":
        return self

    def submit(self, direction: Direction, pairs: list[tuple[int, int]]) -> int:
        self.told.append((direction, pairs))
        self.ended.append(SimpleNamespace(copy_id=len(self.told), success=self.success))
        return len(self.told)

    def wait(self, copies: list[int]) -> None:
        if copies:
            self.told.append(("wait", copies))

    def poll(self) -> list[Any]:
        ended, self.ended = self.ended, []
        return ended


def worker_of(subject: Subject, metadata: Any, *, success: bool = True) -> tuple[Any, Copies]:
    """A worker whose room begins with slot 100, after a step."""
    copies = Copies(success)
    world = World(WorldConfig(block_size=BLOCK, host_slots=4), subject)
    worker = world.engine.connectors[0].side  # type: ignore[attr-defined]
    device = SimpleNamespace(allocate_host=lambda slots: 100, copies=copies)
    worker.register_kv_caches({"layer": SimpleNamespace(device=device)})
    worker.bind_connector_metadata(metadata)
    worker.handle_preemptions(metadata)
    worker.start_load_kv(None)
    for name in ("first", "second"):
        worker.wait_for_layer_load(name)
    for name in ("first", "second"):
        worker.save_kv_layer(name, None, None)
    worker.wait_for_save()
    return worker, copies


LOAD, STORE = (Direction.LOAD, [(5, 103), (6, 102)]), (Direction.STORE, [(7, 101)])
PLAN = Plan(loads=[(5, 3), (6, 2)], stores=[(7, 1)], store_id=9)


def test_later_copies_and_reports_by_request() -> None:
    worker, copies = worker_of(LATER, Jobs({"a": [(5, 3), (6, 2)]}, {"b": [(7, 1)]}))
    assert copies.told == [LOAD, STORE]
    results = worker.get_transfer_results(set())
    assert (results.finished_recving, results.finished_sending, results.failed_recving) == ({"a"}, {"b"}, set())
    assert worker.get_block_ids_with_load_errors() == set()
    assert worker.build_connector_worker_meta() is None
    worker, _ = worker_of(LATER, Jobs({"a": [(5, 3), (6, 2)]}, {"b": [(7, 1)]}), success=False)
    results = worker.get_transfer_results(set())
    assert (results.finished_recving, results.finished_sending, results.failed_recving) == ({"a"}, {"b"}, {"a"})
    for failed in ({5, 6}, set()):  # once
        assert worker.get_block_ids_with_load_errors() == failed
    for told in (FailedStores({"b"}), None):
        assert worker.build_connector_worker_meta() == told


@pytest.mark.parametrize("subject", [PATIENT, LAYERWISE], ids=["patient", "layerwise"])
def test_patient_waits_for_its_loads_at_once_and_for_its_stores_later(subject: Subject) -> None:
    worker, copies = worker_of(subject, PLAN)
    assert copies.told == [LOAD, ("wait", [1]), STORE]
    worker.handle_preemptions(PLAN)
    assert copies.told[3:] == [("wait", [3])]
    assert worker.get_block_ids_with_load_errors() == set()
    for told in (Ended({9: 1}), None):
        assert worker.build_connector_worker_meta() == told
    worker, _ = worker_of(subject, PLAN, success=False)
    for failed in ({5, 6}, set()):
        assert worker.get_block_ids_with_load_errors() == failed
    for told in (Ended({9: 1}, {9}, {3, 2}), None):
        assert worker.build_connector_worker_meta() == told


# HoldingConnector


def test_holding_holds_for_two_steps_and_reports_twice() -> None:
    scheduler: Any = side_of(HOLDING)
    world = World(WorldConfig(block_size=BLOCK, host_slots=4), HOLDING)
    worker = world.engine.connectors[0].side  # type: ignore[attr-defined]
    assert scheduler.get_num_new_matched_tokens(request("a", "x"), 0) == (0, False)
    assert not scheduler.has_pending_push_work()
    assert scheduler.request_finished(request("a", "x"), []) == (True, None)
    told = []
    for _ in range(6):
        told.append(scheduler.has_pending_push_work())
        plan = scheduler.build_connector_meta(NOTHING)
        worker.bind_connector_metadata(plan)
        worker.start_load_kv(None)
        sent = worker.get_transfer_results(set()).finished_sending
        told.append((plan.request_ids, sent))
        scheduler.update_connector_output(KVConnectorOutput(finished_sending=sent))
    assert told == [
        *(True, (["a"], set())),
        *(True, ([], {"a"})),
        *(True, ([], {"a"})),
        *(True, ([], set())),
        *(True, ([], set())),
        *(False, ([], set())),
    ]


# What all of them know of steps


def test_progress_follows_tables_and_lives() -> None:
    book, first, second = ProgressBook(), request("a", "xyz"), request("a", "pq")
    book.arrive(first)
    [(progress, computed)] = book.step(starting("a", [10, 11], [20, 21], tokens=7))
    assert (progress.request, progress.tables, computed) == (first, ([10, 11], [20, 21]), 7)
    progress.stored_blocks = 1
    [(same, computed)] = book.step(going_on("a", 7, 3, [12], [22]))
    assert same is progress
    assert (progress.tables, progress.stored_blocks, computed) == (([10, 11, 12], [20, 21, 22]), 1, 10)
    assert [computed for _, computed in book.step(going_on("a", 10, 1))] == [11]
    [_] = book.step(going_on("a", 4, 4, [30], [40], resumed=True))
    assert (progress.tables, progress.stored_blocks) == (([30], [40]), 0), "it begins anew"
    book.arrive(second)
    [(other, _)] = book.step(SimpleNamespace(**vars(starting("a", [50], tokens=4)) | {"finished_req_ids": {"a"}}))
    assert (other.request, other.tables) == (second, ([50],))
    book.arrive(request("b", "x"))
    book.forget("b")
    with pytest.raises(KeyError):
        list(book.step(starting("b", [60], tokens=1)))
