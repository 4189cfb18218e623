"""What a rank's worker looks at around the hooks of its connector: waiting, and bytes that a step loads."""

from typing import Any

import pytest

from kv_api import KVConnectorTransferResults
from kv_sim.actions import Action, Kind
from kv_sim.config import WorldConfig
from kv_sim.engine.request import RequestSpec
from kv_sim.examples.catalogue import LATER, MEMORY
from kv_sim.rest import come_to_rest
from kv_sim.subject import Subject
from kv_sim.violation import Invariant, Violation
from kv_sim.world import World


def loading(subject: Subject, *, output: int = 2, **config: Any) -> tuple[World, Any]:
    """A world in which the next step begins to load two blocks and a third is computed; and a worker's half."""
    made = World(WorldConfig(num_blocks=32, **config), subject)
    made.engine.add(RequestSpec("r1", 0, 10, 0, 2, 2))
    assert come_to_rest(made)
    assert made.engine.reset(running=False, connector=False)
    made.engine.add(RequestSpec("r2", 0, 10, 0, output, output))
    connector: Any = made.engine.connectors[0]
    return made, connector.side


@pytest.mark.parametrize("where", ["handle_preemptions", "get_transfer_results"])
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


def test_what_was_reported_stays_as_it_was() -> None:
    """Although a connector goes on with the sets that it answered, and the step comes back later."""
    made, worker = loading(LATER, run_ahead=1)
    failed, blocks = {"r2"}, {3}
    worker.get_transfer_results = lambda finished: KVConnectorTransferResults(set(), set(), failed)
    worker.get_block_ids_with_load_errors = lambda: blocks
    assert made.apply(Action(Kind.SCHEDULE))
    assert made.apply(Action(Kind.EXECUTE, {"rank": 0}))
    failed.add("r9")
    blocks.clear()
    report = made.engine.steps[0].reports[0]
    assert (report.failed_recving, report.invalid_block_ids) == ({"r2"}, {3})


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
