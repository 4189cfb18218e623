"""An engine that is made up, for the checker of HITS: it finds what it is told to, and notes what it is asked."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from kv_sim_notes import Notes

from kv_api import Direction
from kv_sim.checkers.hits import check_forgotten, check_kept
from kv_sim.checkers.served import Served
from kv_sim.config import WorldConfig
from kv_sim.engine.request import SimRequest, Status
from kv_sim.engine.request_spec import RequestSpec
from kv_sim.memory.copy import Copy, State
from kv_sim.subject import Subject, Trait

CONFIG = WorldConfig(block_size=4, host_slots=64)
KEEPS = Subject("Made up", traits=frozenset({Trait.KEEPS}))
TELLS = replace(KEEPS, traits=KEEPS.traits | {Trait.EVENTS})


def request(name: str = "r1", tokens: int = 9, conversation: int = 0, **of: Any) -> SimRequest:
    """One that ended well, if nothing else is said."""
    made = SimRequest(RequestSpec(name, conversation, tokens, 0, 1, 1), 4, 0)
    made.status = Status.FINISHED_STOPPED
    made.__dict__.update(of)
    return made


def copies(*ended: State, running: int = 0, restarts: int = 0, **of: Any) -> Any:
    made = [Copy(each, Direction.STORE, ((1, 1),), "", 0, state=state, **of) for each, state in enumerate(ended)]
    of_rank = SimpleNamespace(ended=made, running=[None] * running, restarts=restarts, failed_slots=Counter())
    return SimpleNamespace(copies=of_rank, rank=0)


class Engine:
    """Finds what it is told to, and writes down what it is asked."""

    def __init__(self, ended: list[SimRequest], finds: Callable[[RequestSpec], int | None], *devices: Any) -> None:
        self.did: list[Any] = []
        self.finds = finds
        self.devices = devices or (copies(), copies(State.DONE))
        self.served = Served(Notes(), 4, is_on=True)
        self.outcome = SimpleNamespace(ended=ended)
        pool = SimpleNamespace(reset=lambda: self.did.append("pool"))
        self.scheduler = SimpleNamespace(blocks=SimpleNamespace(block_pool=pool))
        self.mirror = SimpleNamespace(blocks=Counter[Any]())
        self.works: Callable[[], bool] = lambda: False
        self.forgets: bool | None = True

    @property
    def has_work(self) -> bool:
        return self.works()

    def take_events(self) -> None:
        self.did.append("events")

    def add(self, spec: RequestSpec) -> SimRequest:
        assert not spec.skip_reading_prefix_cache
        assert (spec.output_tokens, spec.max_tokens) == (1, 1)
        self.did.append((spec.request_id, spec.shared_tokens + spec.own_tokens))
        found = self.finds(spec)
        if found is not None:
            self.served.found[spec.request_id] = found
        return SimRequest(spec, 4, 0)

    def reset(self, *, running: bool, connector: bool) -> bool | None:
        self.did.append(("reset", running, connector))
        return self.forgets


def judge(
    engine: Engine, subject: Subject = KEEPS, config: WorldConfig = CONFIG, beside: Sequence[Engine] = ()
) -> list[str]:
    """What is said of it; ``beside``: those that share its store."""
    notes = Notes()
    others: list[Any] = [
        SimpleNamespace(engine=one, subject=subject, config=config, referee=Notes(), shares_with=[])
        for one in beside
    ]
    world: Any = SimpleNamespace(engine=engine, subject=subject, config=config, referee=notes, shares_with=others)

    def settle() -> bool:
        engine.did.append("settle")
        return True

    spec = check_kept(world, settle)
    if spec is not None:
        check_forgotten(world, spec, settle)
    assert all(message.startswith(("HITS  ", "ACCOUNTING  ")) for message in notes.told)
    return notes.told


def asked(engine: Engine) -> list[Any]:
    """What it was asked, in order, without what is done each time."""
    return [did for did in engine.did if isinstance(did, tuple)]
