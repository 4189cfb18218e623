"""Situations of a busy server, each in several sizes, and what a connector's calls are in them.

All of them are plain: nothing fails, copies end at once, everything fits. Work is told for one unit:
a step, a block or a request.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeAlias

from kv_sim.actions import Action, Kind
from kv_sim.config import BUILTIN_ENGINE, WorldConfig
from kv_sim.engine.request import Status
from kv_sim.growth.meter import Meter
from kv_sim.growth.models import Model
from kv_sim.subject import Subject
from kv_sim.world import World

BLOCK_TOKENS: Final = 4
STEP_BLOCKS: Final = 16
"""Blocks of a prompt that a step computes."""
OUTPUTS: Final = 32
"""Tokens that a request samples where decoding is what counts."""
WAITS: Final = 24
"""Steps in which a request waits."""
MOST_STEPS: Final = 500
"""More than any situation takes until nothing is left to do, or as many as there are blocks for who moves one in
each."""


class UnitWork(NamedTuple):
    """The work for one unit of a situation, and which method has most of it."""

    work: float
    most: str


class Unguarded(World):
    """A world in which a connector does its own work alone."""

    guards_media = False


class Server:
    """A world with a meter in it."""

    def __init__(self, subject: Subject, model: Model, engine: str, blocks: int, max_running: int = 4) -> None:
        """It has room for ``blocks`` of each group, on the GPU and beside it."""
        blocks *= len(model.groups)
        self._most_steps = max(MOST_STEPS, blocks)
        self._world = Unguarded(
            WorldConfig(
                num_blocks=blocks,
                block_size=BLOCK_TOKENS,
                groups=model.groups,
                hands_over_states=model.hands_over_states,
                max_running=max_running,
                max_step_tokens=max(STEP_BLOCKS * BLOCK_TOKENS, max_running),
                host_slots=blocks,
                engine=engine,
            ),
            subject,
        )
        self._meter = Meter(self._world.engine.connectors[-1])
        self._added = 0

    def add(self, blocks: int, outputs: int = 2, *, conversation: int | None = None) -> None:
        """A request arrives; of one conversation, its tokens are those of the others."""
        self._added += 1
        shared = 0 if conversation is None else blocks * BLOCK_TOKENS
        spec = {
            "request_id": f"r{self._added}",
            "conversation": conversation or 0,
            "shared_tokens": shared,
            "own_tokens": blocks * BLOCK_TOKENS - shared + 1,
            "output_tokens": outputs,
            "max_tokens": outputs,
        }
        self._apply(Kind.ADD, spec=spec)

    def step(self, *, copies: bool = True) -> Counter[str]:
        """A step, and the end of all copies, if they may; the work of its calls, by method."""
        self._apply(Kind.STEP)
        if copies:
            self._world.apply(Action(Kind.SETTLE))
        return self._meter.take()

    def steps(self, most: int | None = None, *, copies: bool = True) -> Iterator[Counter[str]]:
        """Step until nothing is left to do. Who keeps the engine busy for ever is found out at the end."""
        for _ in range(self._most_steps if most is None else most):
            if not self._world.engine.has_work:
                return
            yield self.step(copies=copies)

    def run(self, most: int | None = None, *, copies: bool = True) -> list[Counter[str]]:
        """The same, all at once."""
        return [*self.steps(most, copies=copies)]

    def abort(self, *, after_steps: int) -> None:
        """The newest request is aborted after some steps whose copies have not ended."""
        for _ in range(after_steps):
            self._apply(Kind.STEP)
        self._apply(Kind.ABORT, request=f"r{self._added}")

    @property
    def halves(self) -> dict[str, Any]:
        """The connector's objects, by the side that they are of."""
        worker, scheduler = self._world.engine.connectors
        return {"scheduler": scheduler, "worker": worker}

    @property
    def own_modules(self) -> tuple[str, ...]:
        """Where the engine's classes are."""
        return self._world.engine.own_modules

    @property
    def newest_waits(self) -> bool:
        """Whether the request that came last has been given nothing yet, blocks or an answer."""
        request = self._world.engine.scheduler.requests.get(f"r{self._added}")
        return request is not None and request.status is Status.WAITING

    @property
    def running(self) -> int:
        """How many requests run."""
        requests = self._world.engine.scheduler.requests.values()
        return sum(request.status is Status.RUNNING for request in requests)

    def forget(self) -> None:
        """The GPU's blocks hold nothing any more; what the connector stored it still has."""
        self._apply(Kind.RESET, running=False, connector=False)

    def end(self) -> None:
        """Let all come to rest, check what must hold then, and end."""
        self._world.rest()
        self._world.end()

    def _apply(self, kind: Kind, **args: Any) -> None:
        is_legal = self._world.apply(Action(kind, args))
        assert is_legal, f"{kind} with {args} is not legal"


MakeServer: TypeAlias = Callable[..., Server]
"""Of so many blocks; by name, how many requests run at most."""


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


class Situation(NamedTuple):
    """One row."""

    unit: str
    """What the work is for."""
    of: str
    """What is counted by its sizes."""
    sizes: tuple[int, ...]
    take: Callable[[MakeServer, int], UnitWork]
    """Measures it in one size."""

    def measure(self, subject: Subject, model: Model, size: int, engine: str = BUILTIN_ENGINE) -> UnitWork:
        """The work of a connector in one size, with one model, in one engine."""
        return self.take(partial(Server, subject, model, engine), size)


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
