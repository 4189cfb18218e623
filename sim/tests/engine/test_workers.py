"""What a rank's worker looks at around the hooks of its connector: waiting, and bytes that a step loads."""

from functools import partial
from typing import Any, Literal

import pytest

from kv_api import KVConnectorOutput, KVConnectorTransferResults
from kv_sim.actions import Action, Kind
from kv_sim.config import WorldConfig
from kv_sim.engine.request_spec import RequestSpec
from kv_sim.examples.catalogue import LATER, MEMORY
from kv_sim.history.rest import come_to_rest
from kv_sim.subject import Subject
from kv_sim.violation import Invariant, Violation
from kv_sim.world import World


def loading(subject: Subject, *, output: int = 2, **config: Any) -> tuple[World, Any]:
    """A world in which the next step begins to load two blocks and a third is computed; and a worker's side."""
    made = World(WorldConfig(num_blocks=32, **config), subject)
    made.engine.add(RequestSpec("r1", 0, 10, 0, 2, 2))
    assert come_to_rest(made)
    assert made.engine.reset(running=False, connector=False)
    made.engine.add(RequestSpec("r2", 0, 10, 0, output, output))
    connector: Any = made.engine.connectors[0]
    return made, connector.side


@pytest.mark.parametrize("where", ["handle_preemptions", "wait_for_save"])
def test_who_waits_for_a_load_elsewhere_may(where: str) -> None:
    made, worker = loading(LATER)
    ask = getattr(worker, where)

    def waits(*args: Any) -> Any:
        worker._copies.wait(list(worker._loads))
        return ask(*args)

    setattr(worker, where, waits)
    for _ in range(3):
        assert made.apply(Action(Kind.STEP))
    assert come_to_rest(made)


def test_what_was_reported_is_what_the_connector_returned() -> None:
    """So one that goes on with its sets before the step comes back changes the report, as in one process."""
    made, worker = loading(LATER, run_ahead=1)
    sent, loaded, failed, blocks = {"r1"}, {"r2"}, {"r2"}, {3}
    worker.get_transfer_results = lambda finished: KVConnectorTransferResults(sent, loaded, failed)
    worker.get_block_ids_with_load_errors = lambda: blocks
    assert made.apply(Action(Kind.SCHEDULE))
    assert made.apply(Action(Kind.EXECUTE, {"rank": 0}))
    report = made.engine.steps[0].reports[0]
    assert report.finished_sending is sent and report.finished_recving is loaded
    assert report.failed_recving is failed and report.invalid_block_ids is blocks


@pytest.mark.parametrize(("runner", "told"), [(1, set()), (2, None)])
def test_only_the_second_runner_leaves_out_a_set_of_nothing(runner: Literal[1, 2], told: set[str] | None) -> None:
    made, worker = loading(LATER, run_ahead=1, runner=runner)
    nothing: set[str] = set()
    worker.get_transfer_results = lambda finished: KVConnectorTransferResults(nothing, nothing, nothing)
    assert made.apply(Action(Kind.SCHEDULE))
    assert made.apply(Action(Kind.EXECUTE, {"rank": 0}))
    report = made.engine.steps[0].reports[0]
    assert report.finished_sending == report.finished_recving == told
    assert told is None or report.finished_sending is nothing


@pytest.mark.parametrize("ranks", [1, 2])
def test_one_process_shares_the_ids_that_ended(ranks: int) -> None:
    """And each of several workers gets a set of its own."""
    made, worker = loading(LATER, tp_size=ranks)
    ask, got = worker.get_transfer_results, []
    worker.get_transfer_results = lambda finished: got.append(finished) or ask(finished)
    step = made.engine.schedule(lambda request, drafts: 0)
    made.engine.execute(0)
    assert (got[0] is step.output.finished_req_ids) == (ranks == 1)
    assert got[0] == step.output.finished_req_ids


@pytest.mark.parametrize(("ranks", "is_told"), [(1, False), (2, True)])
def test_of_an_empty_step_without_a_report_one_process_tells_nothing(ranks: int, is_told: bool) -> None:
    made = World(WorldConfig(num_blocks=32, tp_size=ranks), LATER)
    connector: Any = made.engine.connectors[-1]
    told: list[KVConnectorOutput] = []
    connector.update_connector_output = told.append
    made.engine.schedule(lambda request, drafts: 0)
    made.engine.finish_step()
    assert bool(told) is is_told


def test_what_a_single_worker_reports_reaches_the_scheduler_as_it_is() -> None:
    made = World(WorldConfig(num_blocks=32), LATER)
    made.engine.add(RequestSpec("r1", 0, 10, 0, 2, 2))
    connector: Any = made.engine.connectors[-1]
    told: list[KVConnectorOutput] = []
    connector.update_connector_output = told.append
    step = made.engine.schedule(lambda request, drafts: 0)
    made.engine.finish_step()
    assert told[0] is step.reports[0]


@pytest.mark.parametrize("runner", [1, 2])
def test_blocks_are_taken_over_after_the_fence_and_before_anything_is_computed(
    runner: Literal[1, 2], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And zeroed after it, too, by the first runner, and before it by the second."""
    told: list[tuple[str, Any]] = []
    config = WorldConfig(runner=runner, zero_new_blocks=True)
    made = World(config, MEMORY, observe=lambda call: told.append((call.method, call.side)))
    (device,) = made.engine.devices

    def noted(name: str, call: Any, *args: Any) -> Any:
        told.append((name, args[0]))
        return call(*args)

    for name in ("begin_step", "zero", "copy_blocks", "take_over", "poison", "launch"):
        monkeypatch.setattr(device, name, partial(noted, name, getattr(device, name)))
    made.engine.add(RequestSpec("r1", 0, 9, 0, 1, 1))
    told.clear()
    assert made.apply(Action(Kind.STEP))
    (step,) = [what for name, what in told if name == "launch"]
    begin, zero, copy = ("begin_step", [1, 2, 3]), ("zero", [1, 2, 3]), ("copy_blocks", ())
    fence = ("handle_preemptions", "worker 0")
    before, after = ([], [zero, copy]) if runner == 1 else ([zero, copy], [])
    assert told[told.index(begin) : told.index(("bind_connector_metadata", "worker 0"))] == [
        begin,
        *before,
        fence,
        ("take_over", [1, 2, 3]),
        *after,
        ("poison", []),
    ]
    assert told.index(("launch", step)) > told.index(("bind_connector_metadata", "worker 0"))


@pytest.mark.parametrize("layer", [0, 1])
@pytest.mark.parametrize("place", [0, 1])
def test_each_block_that_a_step_loads_is_there_when_its_layer_was_waited_for(place: int, layer: int) -> None:
    made, worker = loading(MEMORY, layers=2)
    wait, waited = worker.wait_for_layer_load, []

    def spoils(name: str) -> None:
        wait(name)
        waited.append(name)
        (table,) = made.engine.scheduler.blocks.tables["r2"].groups
        made.engine.devices[0].memory[table[place], layer, 3] ^= len(waited) == layer + 1

    worker.wait_for_layer_load = spoils
    with pytest.raises(Violation) as raised:
        made.apply(Action(Kind.STEP))
    assert raised.value.invariant is Invariant.CONTENT
    assert raised.value.message.startswith(f"request r2 token {4 * place + 3}: rank 0 block ")
    assert raised.value.message.endswith(
        f"(group 0, layer {layer}, step {made.engine.num_steps}, in which it is loaded, when wait_for_layer_load "
        "returned)"
    )
