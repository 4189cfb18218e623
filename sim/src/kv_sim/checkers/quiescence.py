"""What must hold when everything is at rest: LIVENESS, CONSERVATION, GEOMETRY, ACCOUNTING and HITS are judged.

Until then sessions get the turns that they wait for, and are told to end. Several of them may wait for each
other's blocks, or keep others from theirs, and no engine takes any away from them: then their clients give up.
"""

from kv_sim.checkers import conservation, geometry, hits
from kv_sim.engine.engine import Engine
from kv_sim.engine.request import SimRequest, Status
from kv_sim.violation import Invariant
from kv_sim.world_state import WorldState

MOST_STEPS = 400
"""Steps within which a world's few requests must have ended. They need far fewer."""
PATIENCE = 25
"""Steps without any progress after which the client of a session that waits for room gives up."""


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
    engine, stands = world.engine, 0
    for _ in range(MOST_STEPS):
        world._settle({}, None)
        while engine.steps:
            engine.finish_step()
            world._settle({}, None)
        for request in [r for r in _requests(engine) if r.status is Status.WAITING_FOR_STREAMING_REQ]:
            world._turn({"request": request.request_id}, None)
        if not engine.has_work:
            return True
        before = _progress(engine)
        world._step({}, None)
        stands = stands + 1 if _progress(engine) == before else 0
        if stands >= PATIENCE:
            _give_up_a_session(world)
    stuck = ", ".join(repr(r) for r in engine.scheduler.requests.values()) or "none, but it wants to go on"
    world.referee.fail(Invariant.LIVENESS, f"after {MOST_STEPS} quiet steps there are still requests: {stuck}")
    return False


def _requests(engine: Engine) -> list[SimRequest]:
    return list(engine.scheduler.requests.values())


def _progress(engine: Engine) -> list[tuple[object, ...]]:
    return [(r.request_id, r.status, r.num_computed_tokens, r.num_output_tokens) for r in _requests(engine)]


def _give_up_a_session(world: WorldState) -> None:
    """One of those that have blocks and need more."""
    for request in world.engine.scheduler.holding:
        if request.turn and request.status is Status.WAITING:
            world._abort({"request": request.request_id}, None)
            return
