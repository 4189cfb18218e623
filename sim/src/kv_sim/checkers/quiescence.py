"""What must hold when everything is at rest: LIVENESS, CONSERVATION, GEOMETRY, ACCOUNTING and HITS are judged."""

from kv_sim.checkers import conservation, geometry, hits
from kv_sim.violation import Invariant
from kv_sim.world_state import WorldState

MOST_STEPS = 400
"""Steps within which a world's few requests must have ended. They need far fewer."""


def come_to_rest(world: WorldState) -> None:
    """Let copies and requests end, then check."""
    if not _settle(world):
        return
    engine = world.engine
    engine.check()
    conservation.check_engine(engine)
    conservation.check_connectors(engine)
    conservation.check_books(engine)
    conservation.check_halves(engine)
    geometry.check_ranks(engine)
    world.counted.check(engine.devices, world.config.block_bytes)
    hits.check_kept(world, lambda: _settle(world))
    if not engine.has_work:  # what was asked and reset since has come to rest, too
        conservation.check_books(engine)
        world.counted.check(engine.devices, world.config.block_bytes)


def _settle(world: WorldState) -> bool:
    """Take quiet steps until nothing is left to do. False: there always is."""
    engine = world.engine
    for _ in range(MOST_STEPS):
        world._settle({}, None)
        while engine.steps:
            engine.finish_step()
            world._settle({}, None)
        if not engine.has_work:
            return True
        world._step({}, None)
    stuck = ", ".join(repr(r) for r in engine.scheduler.requests.values()) or "none, but it wants to go on"
    world.referee.fail(Invariant.LIVENESS, f"after {MOST_STEPS} quiet steps there are still requests: {stuck}")
    return False
