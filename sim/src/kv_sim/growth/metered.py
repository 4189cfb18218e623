"""``MeteredWorld``: a world that counts a connector's work, with methods for requests that arrive and end."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, TypeAlias

from kv_sim.actions import Action, Kind
from kv_sim.config import WorldConfig
from kv_sim.engine.engine import Engine
from kv_sim.engine.request import SimRequest, Status
from kv_sim.growth.meter import Meter
from kv_sim.growth.models import Model
from kv_sim.history.router import Router
from kv_sim.subject import Subject
from kv_sim.violation import Invariant, Referee
from kv_sim.world import World

BLOCK_TOKENS: Final = 4
STEP_BLOCKS: Final = 16
"""Blocks of a prompt that a step computes."""
MOST_STEPS: Final = 500
"""More steps than any situation takes; with more blocks as many steps as blocks, for a connector that moves one
block in a step."""


class Wishes(Router):
    """A router that wants a request held if ``holds`` is set when the request arrives."""

    holds = False

    def __init__(self, engines: Sequence[Engine], **_: bool) -> None:
        """Make a router that is always fair; other arguments are ignored."""
        super().__init__(engines, is_fair=True)

    def is_wanted(self, engine: Engine, request: SimRequest) -> bool:
        """Whether the situation wants requests held."""
        return self.holds


class Unguarded(World):
    """A world without guards of media, so that only the connector's own work is counted."""

    guards_media = False
    router_class = Wishes


class MeteredWorld:
    """A world with a meter for each engine; if engines serve each other there may be two."""

    def __init__(
        self,
        subject: Subject,
        model: Model,
        engine: str,
        blocks: int,
        max_running: int = 4,
        *,
        without: frozenset[Invariant] = frozenset(),
    ) -> None:
        """GPU and host memory have room for ``blocks`` of each group. The checkers of ``without`` are off."""
        blocks *= len(model.groups)
        referee = Referee(switched_off={*without})
        self._most_steps = max(MOST_STEPS, blocks)
        finds_itself = subject.serves_peers and subject.engines == 1
        self._world = Unguarded(
            WorldConfig(
                num_blocks=blocks,
                prefix_caching=not finds_itself,  # or nothing would be pulled of what one has oneself
                engines=subject.engines,
                block_size=BLOCK_TOKENS,
                groups=model.groups,
                hands_over_states=model.hands_over_states,
                max_running=max_running,
                max_step_tokens=max(STEP_BLOCKS * BLOCK_TOKENS, max_running),
                host_slots=blocks,
                engine=engine,
            ),
            subject,
            referee=referee,
        )
        self._meters = [Meter(engine.connectors[-1]) for engine in self._world.engines]
        self._added = 0

    def add(self, blocks: int, outputs: int = 2, *, conversation: int | None = None) -> None:
        """A request arrives; the tokens of requests of one conversation are the same."""
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

    def step(self, *, copies_end: bool = True) -> Counter[str]:
        """A step of each engine with work, then progress of the copies; returns the work of calls by method."""
        for site in self._world.sites:
            if site.engine.has_work:
                self._apply(Kind.STEP, **site.where)
        for site in self._world.sites:
            if copies_end:
                self._world.apply(Action(Kind.SETTLE, site.where))
        return sum((meter.take() for meter in self._meters), Counter[str]())

    def steps(self, most: int | None = None, *, copies_end: bool = True) -> Iterator[Counter[str]]:
        """Step until no work is left. A connector that keeps the engine busy for ever is found at the end."""
        for _ in range(self._most_steps if most is None else most):
            if not any(engine.has_work for engine in self._world.engines):
                return
            yield self.step(copies_end=copies_end)

    def run(self, most: int | None = None, *, copies_end: bool = True) -> list[Counter[str]]:
        """`steps`, all of them at once."""
        return [*self.steps(most, copies_end=copies_end)]

    def hold(self, blocks: int) -> list[Counter[str]]:
        """A prompt that another engine wants arrives. Step until it is held, or has ended without a hold."""
        self._router.holds = True
        self.add(blocks, outputs=1)
        self._router.holds = False
        requests, name = self._world.engine.scheduler.requests, f"r{self._added}"
        return self._until(lambda: name not in requests or requests[name].is_held)

    def come(self) -> list[Counter[str]]:
        """A request with the ticket of the held prompt arrives and pulls it. Step until it has ended."""
        found, before = self._router.last_claim(), self.held
        if found is None:
            return []
        engine, spec = found
        (where,) = (site.where for site in self._world.sites if site.engine is engine)
        self._apply(Kind.ADD, **where, spec=spec.to_json())
        requests = engine.scheduler.requests
        return self._until(lambda: spec.request_id not in requests and self.held < before)

    def _until(self, is_over: Callable[[], bool]) -> list[Counter[str]]:
        """Step until ``is_over``; returns the work of the steps."""
        steps: list[Counter[str]] = []
        while not is_over() and len(steps) < self._most_steps:
            steps.append(self.step())
            for engine in self._world.engines:
                engine.let_others_work()
        return steps

    @property
    def held(self) -> int:
        """How many requests all engines have."""
        requests = (engine.scheduler.requests for engine in self._world.engines)
        return sum(request.is_held for of_one in requests for request in of_one.values())

    @property
    def serves_peers(self) -> bool:
        """Whether blocks can be held for others, and pulled."""
        return self._world.router is not None

    @property
    def _router(self) -> Wishes:
        assert isinstance(self._world.router, Wishes), f"{self._world.subject.kv_connector} serves no others"
        return self._world.router

    def abort(self, *, after_steps: int) -> None:
        """The newest request is aborted after some steps whose copies have not ended."""
        for _ in range(after_steps):
            self._apply(Kind.STEP)
        self._apply(Kind.ABORT, request=f"r{self._added}")

    @property
    def sides(self) -> dict[str, Any]:
        """Side -> the connector's object."""
        sides: dict[str, Any] = {}
        for site in self._world.sites:
            worker, scheduler = site.engine.connectors
            sides |= {f"{site.place.words}scheduler": scheduler, f"{site.place.words}worker": worker}
        return sides

    @property
    def own_modules(self) -> tuple[str, ...]:
        """Where the engine's classes are."""
        return self._world.engine.own_modules

    @property
    def newest_waits(self) -> bool:
        """Whether the newest request has neither blocks nor an answer yet."""
        request = self._world.engine.scheduler.requests.get(f"r{self._added}")
        return request is not None and request.status is Status.WAITING

    @property
    def running(self) -> int:
        """How many requests run."""
        requests = self._world.engine.scheduler.requests.values()
        return sum(request.status is Status.RUNNING for request in requests)

    def forget(self) -> None:
        """The prefix cache forgets all blocks; the connector keeps its stored ones."""
        self._apply(Kind.RESET, running=False, connector=False)

    def end(self) -> None:
        """Come to rest, run the checks for that, and end."""
        self._world.rest()
        self._world.end()

    def _apply(self, kind: Kind, **args: Any) -> None:
        is_legal = self._world.apply(Action(kind, args))
        assert is_legal, f"{kind} with {args} is not legal"


MakeWorld: TypeAlias = Callable[..., MeteredWorld]
"""Makes a world with so many blocks; ``max_running`` limits how many requests run."""
