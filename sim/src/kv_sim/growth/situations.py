"""Situations of a busy server, each in several sizes, and what a connector's calls are in them.

All of them are plain: nothing fails, copies end at once, everything fits. Work is told for one unit:
a step, a block or a request.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Final, NamedTuple

from kv_sim.config import BUILTIN_ENGINE
from kv_sim.growth.models import Model
from kv_sim.growth.server import STEP_BLOCKS, MakeServer, Server
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


def _step_of_a_prompt(make: MakeServer, blocks: int) -> UnitWork:
    """The last full steps of a prompt: what came before may not count."""
    server = make(2 * blocks + STEP_BLOCKS)
    server.add(blocks)
    full = blocks // STEP_BLOCKS
    last = server.run()[full - full // 4 : full]
    server.end()
    return _per_unit(last, len(last))


def _whole_prompt(make: MakeServer, blocks: int) -> UnitWork:
    server = make(2 * blocks + STEP_BLOCKS)
    server.add(blocks)
    steps = server.run()
    server.end()
    return _per_unit(steps, blocks)


def _known_prompt(make: MakeServer, blocks: int) -> UnitWork:
    """A prompt that was computed before and has left the GPU. A connector that stored it loads it now."""
    server = make(2 * blocks + STEP_BLOCKS)
    server.add(blocks, conversation=1)
    server.run()
    server.forget()
    server.add(blocks, conversation=1)
    steps = server.run()
    server.end()
    return _per_unit(steps, blocks)


def _prompt_on_its_way(make: MakeServer, blocks: int) -> UnitWork:
    """A step of a request whose prompt is still being stored. A connector may have it wait for that."""
    server = make(2 * blocks + STEP_BLOCKS)
    server.add(blocks, conversation=1)
    server.run(blocks // STEP_BLOCKS + 4, copies=False)
    server.forget()
    server.add(blocks, conversation=1)
    steps: list[Counter[str]] = []
    for work in server.steps(WAITS, copies=False):
        if not server.newest_waits:
            break
        steps.append(work)
    server.run()
    server.end()
    return _per_unit(steps[1:], len(steps[1:]))  # in the first one, all of the prompt is looked for


def _decoding(make: MakeServer, requests: int) -> UnitWork:
    """A step in which so many requests sample a token each."""
    server = make(16 * requests, max_running=requests)
    for _ in range(requests):
        server.add(1, outputs=OUTPUTS)
    steps: list[Counter[str]] = []
    for work in server.steps():
        if server.running == requests:
            steps.append(work)
        elif steps:
            break
    server.end()
    return _per_unit(steps[1:], len(steps[1:]) * requests)  # in the first one, the last of them was admitted


def _beside_others(make: MakeServer, requests: int) -> UnitWork:
    """A step of one request that decodes, while so many wait for their turn."""
    server = make(32, max_running=1)
    server.add(1, outputs=OUTPUTS)
    server.step()
    for _ in range(requests):
        server.add(1, outputs=1)
    steps = [server.step() for _ in range(OUTPUTS - 1)]
    server.end()
    return _per_unit(steps[1:], len(steps[1:]))  # in the first one, the others were told to have arrived


def _after_others(make: MakeServer, requests: int) -> UnitWork:
    """One request after so many others that have come and gone."""
    server = make(3 * requests + STEP_BLOCKS)
    for _ in range(requests):
        server.add(2)
        server.run()
    server.add(2)
    steps = server.run()
    server.end()
    return _per_unit(steps, 1)


def _pulled(make: MakeServer, blocks: int) -> UnitWork:
    """A prompt that is held, and pulled by whoever goes on from it."""
    server = make(2 * blocks + STEP_BLOCKS)
    steps = _held_and_pulled(server, blocks)
    server.end()
    return _per_unit(steps, blocks)


def _held_and_pulled(server: Server, blocks: int) -> list[Counter[str]]:
    """The steps of both, or none if nothing was held."""
    steps = server.hold(blocks)
    return [*steps, *server.come()] if server.held else []


def _beside_holds(make: MakeServer, requests: int) -> UnitWork:
    """A step of one request that decodes, while so many that ended are held."""
    server = make(2 * requests + 32)
    for _ in range(requests):
        server.hold(1)
    server.add(1, outputs=OUTPUTS)
    steps = [server.step() for _ in range(OUTPUTS - 1)] if server.held else []
    server.end()
    return _per_unit(steps[1:], len(steps[1:]))  # in the first one it was admitted


def _after_pulls(make: MakeServer, requests: int) -> UnitWork:
    """One that is held and pulled, after so many others."""
    server = make(3 * requests + STEP_BLOCKS)
    for _ in range(requests):
        _held_and_pulled(server, 2)
    steps = _held_and_pulled(server, 2)
    server.end()
    return _per_unit(steps, 1)


class Situation(NamedTuple):
    """One row."""

    unit: str
    """What the work is for."""
    of: str
    """What is counted by its sizes."""
    sizes: tuple[int, ...]
    take: Callable[[MakeServer, int], UnitWork]
    """Measures it in one size."""

    def measure(self, subject: Subject, model: Model, size: int) -> UnitWork:
        """The work of a connector in one size, with one model, in the testbed's own engine."""
        return self.take(partial(Server, subject, model, BUILTIN_ENGINE), size)


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
    """Those that a connector can be in."""
    return {**SITUATIONS, **OF_PEERS} if subject.serves_peers else SITUATIONS
