"""How a world comes to rest: no new work arrives, and every copy and request ends.

An engine that pauses or sleeps goes on. Sessions get their remaining turns, and their end. Several
sessions may wait for each other's blocks, or keep other requests waiting, and no engine takes blocks away from
a session: then their clients give up. If engines serve each other, and there is no more progress, requests arrive
that pull what is still held.

All of this follows from the world alone, so it isn't recorded.
"""

from kv_sim.actions import Kind
from kv_sim.engine.pause import Pause
from kv_sim.engine.request import SimRequest, Status
from kv_sim.site import Site
from kv_sim.world_state import WorldState

MOST_STEPS = 400
"""Steps within which one more of a world's few requests must have ended; an engine with more blocks gets as many
steps as it has blocks. Usually far fewer are needed. But a connector may hold blocks until they expire, for which
other requests wait one after the other; or it may move one block in each step."""
PATIENCE = 25
"""Steps without progress after which the client of a session that waits for blocks gives up."""
LAST_CALL = 8
"""Steps without progress after which a request pulls held blocks. Some holds end earlier, by their own timeout."""


def come_to_rest(world: WorldState) -> bool:
    """Take steps without new work until nothing is left to do. False: that never happens."""
    standing_still = 0  # steps without progress
    last_call = LAST_CALL  # after how many of them a request pulls held blocks
    fewest_left = _left(world)  # turns and ends of requests
    steps_without_end = 0  # steps since the last turn or end
    _wake_engines(world)
    most = most_steps(world)
    while steps_without_end < most:
        for site in world.sites:
            _finish_steps(world, site)
        working = [site for site in world.sites if site.engine.has_work]  # a held request counts as work
        if not working:
            return True
        before = _progress(world)
        for site in working:
            world.take(Kind.STEP, **site.where)
        standing_still = standing_still + 1 if _progress(world) == before else 0
        if standing_still:
            for site in world.sites:
                site.engine.let_others_work()
        if standing_still >= PATIENCE:
            _give_up_a_session(world)
        if standing_still >= last_call:
            _pull_remaining_holds(world)
            last_call = 1  # other holds have waited as long
        left = _left(world)
        steps_without_end = 0 if left < fewest_left else steps_without_end + 1
        fewest_left = min(fewest_left, left)
    return False


def _wake_engines(world: WorldState) -> None:
    """Let engines that pause or sleep go on."""
    for site in world.sites:
        if site.engine.pause_state is not Pause.NONE:
            world.take(Kind.WAKE, **site.where)


def most_steps(world: WorldState) -> int:
    """How many steps may pass until one more request has ended."""
    return max(MOST_STEPS, *[site.config.num_blocks for site in world.sites])


def _finish_steps(world: WorldState, site: Site) -> None:
    """Finish running steps and copies, and let the next turns of sessions arrive."""
    engine = site.engine
    world.take(Kind.SETTLE, **site.where)
    while engine.steps:
        engine.finish_step()
        world.take(Kind.SETTLE, **site.where)
    for request in list(engine.scheduler.requests.values()):
        if request.status is Status.WAITING_FOR_STREAMING_REQ:
            world.take(Kind.TURN, **site.where, request=request.request_id)


def _requests(world: WorldState) -> list[SimRequest]:
    return [request for engine in world.engines for request in engine.scheduler.requests.values()]


def _left(world: WorldState) -> int:
    """How many turns, and ends of requests, are still to come."""
    return sum(1 + len(r.spec.turns or ()) - r.turn for r in _requests(world))


def _progress(world: WorldState) -> list[tuple[object, ...]]:
    return [(r.request_id, r.status, r.num_computed_tokens, r.num_output_tokens) for r in _requests(world)]


def _pull_remaining_holds(world: WorldState) -> None:
    """Let a request arrive that pulls held blocks, if there are any that no request has pulled."""
    found = world.router.last_claim() if world.router is not None else None
    for site in world.sites:
        if found is not None and site.engine is found[0]:
            world.take(Kind.ADD, **site.where, spec=found[1].to_json())


def _give_up_a_session(world: WorldState) -> None:
    """Abort one of the sessions that have blocks and need more."""
    for site in world.sites:
        for request in site.engine.scheduler.holding:
            if request.turn and request.status is Status.WAITING:
                world.take(Kind.ABORT, **site.where, request=request.request_id)
                return
