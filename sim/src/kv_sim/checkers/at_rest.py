"""Checks that all requests and copies end (LIVENESS), then CONSERVATION, GEOMETRY, ACCOUNTING and HITS."""

from kv_sim.checkers import conservation, geometry, hits, sharing
from kv_sim.checkers.almost_equal import check_almost_equal
from kv_sim.checkers.media import check_media
from kv_sim.checkers.room import check_room
from kv_sim.history.rest import come_to_rest, most_steps
from kv_sim.site import Site
from kv_sim.subject import Trait
from kv_sim.violation import Invariant
from kv_sim.world_state import WorldState


def check(world: WorldState) -> None:
    """Let all copies and requests end (LIVENESS: they must), and judge the state after that."""
    if not _comes_to_rest(world):
        return
    for site in world.sites:
        _judge_what_is_left(site)
    _judge_hits(world)
    for site in world.sites:
        _judge_what_was_asked(site)


def _judge_what_is_left(site: Site) -> None:
    """Check one engine and its connector for blocks, requests and counts that are left."""
    engine = site.engine
    engine.check()
    check_media(engine.connectors[-1])
    conservation.check_engine(engine)
    conservation.check_connectors(engine)
    conservation.check_books(engine)
    conservation.check_sides(engine)
    geometry.check_ranks(engine)
    site.counted.check(engine.devices)


def _judge_hits(world: WorldState) -> None:
    """Check what each engine finds; then, since engines may share a store, that nothing is found after a reset."""

    def settle() -> bool:
        return _comes_to_rest(world)

    shares = world.subject.shares_store and Trait.KEEPS in world.subject.traits
    probes = []
    for site in world.sites:
        if shares and not sharing.let_all_hear(world.sites, settle):
            return
        probes.append((site, hits.check_kept(site, settle)))
    for site in world.sites if shares else ():
        sharing.check_lent(site, settle)
    for site in world.sites:
        check_almost_equal(site, settle)
    for site, spec in probes:
        if spec is not None:
            hits.check_forgotten(site, spec, settle)


def _judge_what_was_asked(site: Site) -> None:
    """Check one engine again, after the requests that were repeated at rest."""
    engine = site.engine
    if not engine.has_work:  # what was asked and reset since has come to rest, too
        conservation.check_books(engine)
        site.counted.check(engine.devices)
        lost = any(device.copies.running for device in engine.devices)
        if Trait.RESET in site.subject.traits and not lost:  # what is lost is in use for ever
            check_room(engine.connectors[-1], engine.referee)
            conservation.check_books(engine)


def _comes_to_rest(world: WorldState) -> bool:
    if come_to_rest(world):
        return True
    stuck = ", ".join(repr(r) for engine in world.engines for r in engine.scheduler.requests.values())
    what = f"these requests are left: {stuck}" if stuck else "no request is left, but the engine has to go on"
    world.referee.fail(Invariant.LIVENESS, f"after {most_steps(world)} steps without new work {what}")
    return False
