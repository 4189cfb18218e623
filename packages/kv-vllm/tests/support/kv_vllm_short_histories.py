"""Short histories of vLLM's connectors, action by action; also of two engines between which one moves blocks."""

from contextlib import suppress
from dataclasses import replace
from random import Random

from kv_sim.actions import Action, Kind
from kv_sim.checkers import at_rest
from kv_sim.config import WorldConfig
from kv_sim.engine.request_spec import RequestSpec
from kv_sim.guard import HistoryEnds
from kv_sim.history.coverage import LOADS
from kv_sim.history.draws import config_for
from kv_sim.subject import Trait
from kv_sim.violation import Violation
from kv_sim.world import World

HOLDS = frozenset({Trait.RANKS, Trait.HOLDS})
CONFIG = WorldConfig(engine="vllm", engines=2, role="kv_producer", prefix_caching=False)


def comes(name, tokens=9, samples=1, conversation=0, *, engine=0, **more):
    """A request of that name comes to an engine, with the prompt that all of a conversation have."""
    spec = RequestSpec(name, conversation, tokens, 0, samples, samples, **more)
    return Action(Kind.ADD, {"engine": engine, "spec": spec.to_json()})


def held(name, tokens=9):
    """One is held at the first engine."""
    return [comes(name, tokens), *[Action(Kind.STEP)] * 3]


def bearer(name, tokens=9, *, reads=True):
    """Who comes to the other engine with its ticket."""
    return comes(f"{name}-00000001", tokens, engine=1, skip_reading_prefix_cache=not reads)


def rests(world):
    """An action of these histories: all that is under way comes to an end."""
    at_rest.check(world)
    return True


def settles(world):
    """Another one: copies end, if there are any."""
    return world.apply(Action(Kind.SETTLE)) or True


def what_is_wrong(subject, config, *parts, without=()):
    """When everything has come to rest after each of these. A function gets the world."""
    world = World(config, subject)
    world.referee.switched_off.update(without)
    try:
        for actions in parts:
            for action in actions:
                assert action(world) if callable(action) else world.apply(action), action
            at_rest.check(world)
    except Violation as found:
        return str(found)
    finally:
        world.break_off(None)
    return None


def found_in(subject, config, *parts):
    """The same, of one that holds."""
    return what_is_wrong(replace(subject, traits=HOLDS), config, *parts)


def loads_in_history(subject, seed, *, without=(), **changed):
    """Run a history as a hunt takes it, in a world that may be changed; says how many loads there were."""
    random = Random(seed)
    world = World(replace(config_for(subject, random, "vllm"), **changed), subject)
    world.referee.switched_off.update(without)
    with suppress(HistoryEnds):
        world.run(random, 80)
    return sum(world.coverage.situations[load] for load in LOADS)
