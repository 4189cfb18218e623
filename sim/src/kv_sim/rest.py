"""How a world comes to rest: nothing is added, and every copy and request ends.

Sessions get the turns that they wait for, and are told to end. Several of them may wait for each other's blocks,
or keep others from theirs, and no engine takes any away from them: then their clients give up. Where engines
serve each other, the last ones come for what is held still, when nothing else moves.

It is the same for the same world, so nothing of it is recorded.
"""

from kv_sim.actions import Kind
from kv_sim.engine.engine import Engine
from kv_sim.engine.request import SimRequest, Status
from kv_sim.world_state import WorldState

MOST_STEPS = 400
"""Steps within which one more of a world's few requests must have ended. It needs far fewer: but a connector may
hold blocks until a time is over, and others may wait for these, one after the other."""
PATIENCE = 25
"""Steps without any progress after which the client of a session that waits for room gives up."""
LAST_CALL = 8
"""The same for who comes for what is held. Some holds end before, by their own time."""


def come_to_rest(world: WorldState) -> bool:
    """Take quiet steps until nothing is left to do. False: there always is."""
    engine, stands, last_call = world.engine, 0, LAST_CALL
    left, steps = _left(engine), 0
    while steps < MOST_STEPS:
        world.take(Kind.SETTLE)
        while engine.steps:
            engine.finish_step()
            world.take(Kind.SETTLE)
        for request in [r for r in _requests(engine) if r.status is Status.WAITING_FOR_STREAMING_REQ]:
            world.take(Kind.TURN, request=request.request_id)
        if not engine.has_work:  # who is held is work
            return True
        before = _progress(engine)
        world.take(Kind.STEP)
        stands = stands + 1 if _progress(engine) == before else 0
        if stands:
            engine.let_others_work()
        if stands >= PATIENCE:
            _give_up_a_session(world)
        if stands >= last_call:
            _come_for_what_is_held(world)
            last_call = 1  # the others have waited, too
        left_before, left = left, min(left, _left(engine))
        steps = steps + 1 if left == left_before else 0
    return False


def _requests(engine: Engine) -> list[SimRequest]:
    return list(engine.scheduler.requests.values())


def _left(engine: Engine) -> int:
    """How many turns, and ends of requests, are yet to come. Nothing is added at rest."""
    return sum(1 + len(r.spec.turns or ()) - r.turn for r in _requests(engine))


def _progress(engine: Engine) -> list[tuple[object, ...]]:
    return [(r.request_id, r.status, r.num_computed_tokens, r.num_output_tokens) for r in _requests(engine)]


def _come_for_what_is_held(world: WorldState) -> None:
    """For one request that is, if any is for which nobody has come."""
    spec = world.router.last_claim() if world.router is not None else None
    if spec is not None:
        world.take(Kind.ADD, spec=spec.to_json())


def _give_up_a_session(world: WorldState) -> None:
    """One of those that have blocks and need more."""
    for request in world.engine.scheduler.holding:
        if request.turn and request.status is Status.WAITING:
            world.take(Kind.ABORT, request=request.request_id)
            return
