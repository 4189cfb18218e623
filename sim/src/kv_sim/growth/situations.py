"""Situations of a world, each in several sizes, and the work of a connector's calls in them.

All of them are plain: nothing fails, copies end at once, everything fits. Work is counted for one unit:
a step, a block or a request.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Final, NamedTuple

from kv_sim.config import BUILTIN_ENGINE
from kv_sim.growth.metered import STEP_BLOCKS, MakeWorld, MeteredWorld
from kv_sim.growth.models import Model
from kv_sim.subject import Subject

OUTPUTS: Final = 32
"""Tokens that a request samples where decoding is what counts."""
WAITS: Final = 24
"""Steps in which a request waits."""


class UnitWork(NamedTuple):
    """The work for one unit of a situation, and which method has most of it."""

    work: float
    most: str


def _per_unit(steps: list[Counter[str]], units: int) -> UnitWork:
    total = sum(steps, Counter[str]())
    ((most, _),) = total.most_common(1) or [("", 0)]
    return UnitWork(total.total() / max(units, 1), most)


def _step_of_a_prompt(make: MakeWorld, blocks: int) -> UnitWork:
    """The last full steps of a prompt: their work may not depend on earlier ones."""
    world = make(2 * blocks + STEP_BLOCKS)
    world.add(blocks)
    full = blocks // STEP_BLOCKS
    last = world.run()[full - full // 4 : full]
    world.end()
    return _per_unit(last, len(last))


def _whole_prompt(make: MakeWorld, blocks: int) -> UnitWork:
    world = make(2 * blocks + STEP_BLOCKS)
    world.add(blocks)
    steps = world.run()
    world.end()
    return _per_unit(steps, blocks)


def _known_prompt(make: MakeWorld, blocks: int) -> UnitWork:
    """A prompt that was computed before and has left the GPU. A connector that stored it loads it now."""
    world = make(2 * blocks + STEP_BLOCKS)
    world.add(blocks, conversation=1)
    world.run()
    world.forget()
    world.add(blocks, conversation=1)
    steps = world.run()
    world.end()
    return _per_unit(steps, blocks)


def _prompt_on_its_way(make: MakeWorld, blocks: int) -> UnitWork:
    """A step of a request whose prompt is still being stored. A connector may have it wait for that."""
    world = make(2 * blocks + STEP_BLOCKS)
    world.add(blocks, conversation=1)
    world.run(blocks // STEP_BLOCKS + 4, copies_end=False)
    world.forget()
    world.add(blocks, conversation=1)
    steps: list[Counter[str]] = []
    for work in world.steps(WAITS, copies_end=False):
        if not world.newest_waits:
            break
        steps.append(work)
    world.run()
    world.end()
    return _per_unit(steps[1:], len(steps[1:]))  # in the first one, all of the prompt is looked for


def _decoding(make: MakeWorld, requests: int) -> UnitWork:
    """A step in which so many requests sample a token each."""
    world = make(16 * requests, max_running=requests)
    for _ in range(requests):
        world.add(1, outputs=OUTPUTS)
    steps: list[Counter[str]] = []
    for work in world.steps():
        if world.running == requests:
            steps.append(work)
        elif steps:
            break
    world.end()
    return _per_unit(steps[1:], len(steps[1:]) * requests)  # in the first one, the last of them was admitted


def _beside_others(make: MakeWorld, requests: int) -> UnitWork:
    """A step of one request that decodes, while so many others wait."""
    world = make(32, max_running=1)
    world.add(1, outputs=OUTPUTS)
    world.step()
    for _ in range(requests):
        world.add(1, outputs=1)
    steps = [world.step() for _ in range(OUTPUTS - 1)]
    world.end()
    return _per_unit(steps[1:], len(steps[1:]))  # in the first one, the others were told to have arrived


def _after_others(make: MakeWorld, requests: int) -> UnitWork:
    """One request after so many others have ended."""
    world = make(3 * requests + STEP_BLOCKS)
    for _ in range(requests):
        world.add(2)
        world.run()
    world.add(2)
    steps = world.run()
    world.end()
    return _per_unit(steps, 1)


def _pulled(make: MakeWorld, blocks: int) -> UnitWork:
    """A prompt that is held, and pulled by the next request."""
    world = make(2 * blocks + STEP_BLOCKS)
    steps = _held_and_pulled(world, blocks)
    world.end()
    return _per_unit(steps, blocks)


def _held_and_pulled(world: MeteredWorld, blocks: int) -> list[Counter[str]]:
    """The steps of both requests; none if the connector held nothing."""
    steps = world.hold(blocks)
    return [*steps, *world.come()] if world.held else []


def _beside_holds(make: MakeWorld, requests: int) -> UnitWork:
    """A step of one request that decodes, while the blocks of so many ended ones are held."""
    world = make(2 * requests + 32)
    for _ in range(requests):
        world.hold(1)
    world.add(1, outputs=OUTPUTS)
    steps = [world.step() for _ in range(OUTPUTS - 1)] if world.held else []
    world.end()
    return _per_unit(steps[1:], len(steps[1:]))  # in the first one it was admitted


def _after_pulls(make: MakeWorld, requests: int) -> UnitWork:
    """A prompt that is held and pulled, after so many others."""
    world = make(3 * requests + STEP_BLOCKS)
    for _ in range(requests):
        _held_and_pulled(world, 2)
    steps = _held_and_pulled(world, 2)
    world.end()
    return _per_unit(steps, 1)


class Situation(NamedTuple):
    """A situation whose work is measured in several sizes."""

    unit: str
    """The unit of the work."""
    of: str
    """The unit of its sizes."""
    sizes: tuple[int, ...]
    take: Callable[[MakeWorld, int], UnitWork]
    """Measures it in one size."""

    def measure(self, subject: Subject, model: Model, size: int) -> UnitWork:
        """The work of a connector in one size, with one model, in the testbed's own engine."""
        return self.take(partial(MeteredWorld, subject, model, BUILTIN_ENGINE), size)


_BLOCKS, _REQUESTS = (64, 256, 1024), (8, 32, 128)

SITUATIONS: Final[Mapping[str, Situation]] = MappingProxyType(
    {
        "a prompt's last steps": Situation("step", "blocks", _BLOCKS, _step_of_a_prompt),
        "a prompt, from arrival to end": Situation("block", "blocks", _BLOCKS, _whole_prompt),
        "a prompt that was stored": Situation("block", "blocks", _BLOCKS, _known_prompt),
        "a prompt that is being stored": Situation("step", "blocks", _BLOCKS, _prompt_on_its_way),
        "requests that decode": Situation("request", "requests", _REQUESTS, _decoding),
        "a request beside others": Situation("step", "requests", _REQUESTS, _beside_others),
        "a request after others": Situation("request", "requests", _REQUESTS, _after_others),
    }
)

OF_PEERS: Final[Mapping[str, Situation]] = MappingProxyType(
    {
        "a prompt that is pulled": Situation("block", "blocks", _BLOCKS, _pulled),
        "a request beside holds": Situation("step", "holds", _REQUESTS, _beside_holds),
        "a pull after others": Situation("pull", "pulls", _REQUESTS, _after_pulls),
    }
)
"""Where engines serve each other. The work of both counts, if there are two."""


def situations_for(subject: Subject) -> Mapping[str, Situation]:
    """The situations that are possible with a connector."""
    return {**SITUATIONS, **OF_PEERS} if subject.serves_peers else SITUATIONS
