"""Of wrong bytes it is said whose they are, where somebody here has such."""

import pytest

from kv_sim.config import WorldConfig
from kv_sim.engine.request_spec import RequestSpec
from kv_sim.examples.catalogue import MEMORY
from kv_sim.violation import Violation
from kv_sim.world import World

CONFIG = WorldConfig(tp_size=2, layers=2, max_running=2)


def computed(*names: str) -> World:
    """Requests of different prompts that a step has computed."""
    made = World(CONFIG, MEMORY)
    for number, name in enumerate(names):
        made.engine.add(RequestSpec(name, number, 6, 0, 4, 4))
    made.engine.schedule(lambda request, drafts: 0)
    for worker in range(2):
        made.engine.execute(worker)
    made.engine.finish_step()
    return made


def told(rank: int, layer: int, *, mask: int = 0) -> str:
    """What is said when a block of r2, on rank 0 in layer 1, holds one of r1's from there."""
    made = computed("r1", "r2")
    made.engine.devices[0].kernels.others.append(computed("theirs", "r2").engine.devices[0].kernels)
    tables = made.engine.scheduler.blocks.tables
    first, second = (tables[name].groups[0][0] for name in ("r1", "r2"))
    memory = [device.memory for device in made.engine.devices]
    memory[0][second, 1] = memory[rank][first, layer] ^ mask
    made.engine.schedule(lambda request, drafts: 0)
    with pytest.raises(Violation) as found:
        made.engine.finish_step()
    return str(found.value)


def test_whose_they_are() -> None:
    said = "CONTENT  request r2 token 0: rank 0 block 3 holds "
    assert told(0, 1).startswith(f"{said}token 0 of request r1, last written by")
    assert told(0, 0).startswith(f"{said}token 0 of request r1 of rank 0, group 0, layer 0, last written by")
    assert told(1, 1).startswith(f"{said}token 0 of request r1 of rank 1, group 0, layer 1, last written by")
    assert told(0, 1, mask=1).startswith(f"{said}0x"), "nobody's"
