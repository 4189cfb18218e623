"""The actions that may come next in a world, and their probabilities.

A choice is a kind of action with its arguments, or with a function that draws them from the world's ``Random``.
There are no choices that are illegal now, that the subject doesn't claim to withstand, or that the world leaves
out.
"""

from collections.abc import Callable, Mapping
from random import Random
from typing import Any, TypeAlias

from kv_sim.actions import Action, Kind
from kv_sim.engine.pause import MODES, Pause
from kv_sim.engine.request import SimRequest
from kv_sim.site import Site
from kv_sim.subject import Trait
from kv_sim.world_state import WorldState

Args: TypeAlias = dict[str, Any]
Choices: TypeAlias = dict[Kind, Args | Callable[[Random], Args]]

WEIGHTS: Mapping[Kind, int] = {
    Kind.ADD: 12,
    Kind.TURN: 10,
    Kind.STEP: 30,
    Kind.SCHEDULE: 12,
    Kind.EXECUTE: 14,
    Kind.RETIRE: 14,
    Kind.PROCESS: 14,
    Kind.SETTLE: 4,
    Kind.FINISH: 14,
    Kind.ADVANCE: 6,
    Kind.FAIL: 4,
    Kind.SPOIL: 1,
    Kind.LOSE: 1,
    Kind.FIND: 3,
    Kind.REPEAT: 2,
    Kind.RESTART: 1,
    Kind.ABORT: 5,
    Kind.RESET: 2,
    Kind.PAUSE: 2,
    Kind.SLEEP: 12,
    Kind.WAKE: 12,
}

TROUBLE = (Kind.FAIL, Kind.SPOIL, Kind.LOSE, Kind.FIND, Kind.REPEAT, Kind.RESTART)
"""The actions that are more frequent in a world with more trouble."""

WHILE_LOADING = 6
"""How much more often the cache is reset while a load is under way, which is rare."""

WHILE_HELD = 3
"""The same while blocks are held for another engine."""
WHILE_UNTOLD = 9
"""The same while the workers don't know of that hold yet, that is until the next step."""

AFTER_RESET = 3
"""How much more often requests arrive while a hold from before a reset exists: one of them may pull it."""

WHERE_COPIES_ARE_LOST = 6
"""How much more often requests are aborted while blocks are pulled and all copies are lost."""

WHERE_STEPS_LOAD = 6
"""How much more often, at least, an awaited copy fails once a step has waited for a load."""
OF_LOADS = 0.75
"""How often such a failure is aimed at the next load within a step."""


OF_PULLS: Mapping[Kind, int] = {
    Kind.ADD: 2,
    Kind.STEP: 3,
    Kind.RESET: 3,
    Kind.FAIL: 4,
    Kind.LOSE: 12,
    Kind.FIND: 4,
}
"""How much more often these are drawn if engines serve peers, since pulls are rare: they need an ended request."""


def pick(world: WorldState, random: Random, at: int = 0) -> Action:
    """One legal action at one of a world's engines."""
    site = world.sites[at]
    choices = legal_choices(world, at)
    kinds = list(choices)
    weights = [_weight(site, kind) for kind in kinds]
    kind = random.choices(kinds, weights)[0]
    args = choices[kind]
    return Action(kind, {**site.where, **(args(random) if callable(args) else args)})


def _weight(site: Site, kind: Kind) -> int:
    weight = WEIGHTS[kind]
    if site.subject.serves_peers:
        weight *= OF_PULLS.get(kind, 1)
        if kind is Kind.ADD and site.tickets.has_revoked:
            weight *= AFTER_RESET
        if kind is Kind.ABORT and _is_loading(site) and site.stands_still:
            weight *= WHERE_COPIES_ARE_LOST
    if kind in TROUBLE:
        trouble = site.config.trouble
        if trouble and kind is Kind.SPOIL and _has_loaded_in_step(site):
            trouble = max(trouble, WHERE_STEPS_LOAD)
        return weight * trouble
    if kind is Kind.RESET and _may(site, "reset_all", Trait.RESET):
        if _is_loading(site):
            weight *= WHILE_LOADING
        if site.tickets.has_held:
            weight *= WHILE_UNTOLD if site.tickets.has_untold else WHILE_HELD
    return weight


def _is_loading(site: Site) -> bool:
    return any(request.awaits_load for request in site.engine.scheduler.requests.values())


def _has_loaded_in_step(site: Site) -> bool:
    return site.coverage.situations["match: load in the step"] > 0


def legal_choices(world: WorldState, at: int = 0) -> Choices:
    """Every kind of action that is legal now at one of a world's engines."""
    site = world.sites[at]
    engine, config = site.engine, site.config
    choices: Choices = {}
    unfinished = [r for r in engine.scheduler.requests.values() if not r.status.is_finished]
    if len(unfinished) < 2 * config.max_running + 2:
        choices[Kind.ADD] = lambda random: {"spec": world.draw_request(random, at).to_json()}
    sessions = [r.request_id for r in unfinished if r.may_hear_more]
    if sessions:
        choices[Kind.TURN] = lambda random: {"request": random.choice(sessions)}
    if engine.has_work:
        choices[Kind.STEP] = {}
        if engine.can_schedule and config.run_ahead:
            choices[Kind.SCHEDULE] = {}
    _add_work_of_ranks(site, choices)
    if engine.processable():
        choices[Kind.PROCESS] = {}
    _add_copies(site, choices)
    _add_lost_copies(site, choices)
    _add_trouble_of_ranks(site, choices)
    if unfinished:
        choices[Kind.ABORT] = lambda random: {"request": _whom_to_abort(random, unfinished)}
    # While blocks are held, vLLM raises at a reset that includes running requests.
    with_running = 0.2 if site.tickets.has_held else 0.5
    choices[Kind.RESET] = lambda random: {
        "running": random.random() < with_running,
        "connector": _may(site, "reset_all", Trait.RESET) and random.random() < 0.5,
    }
    _add_pauses(site, choices)
    for kind in (Kind.ADVANCE, Kind.ABORT, Kind.RESET) if config.silent else ():
        if kind.value in config.silent:
            choices.pop(kind, None)
    return choices


def _add_pauses(site: Site, choices: Choices) -> None:
    if site.engine.pause_state is not Pause.NONE:
        choices[Kind.WAKE] = {}
        if site.engine.may_sleep and Trait.SLEEP in site.subject.traits:
            choices[Kind.SLEEP] = {}
    elif site.config.pauses:
        choices[Kind.PAUSE] = lambda random: {"mode": random.choice(list(MODES))}


def _add_work_of_ranks(site: Site, choices: Choices) -> None:
    ranks = range(site.config.world_size)
    executable = [rank for rank in ranks if site.engine.executable(rank)]
    if executable:
        choices[Kind.EXECUTE] = lambda random: {"rank": random.choice(executable)}
    retirable = [rank for rank in ranks if site.engine.devices[rank].queue]
    if retirable:
        choices[Kind.RETIRE] = lambda random: {"rank": random.choice(retirable)}


def _add_trouble_of_ranks(site: Site, choices: Choices) -> None:
    ranks, run_ahead = range(site.config.world_size), site.config.run_ahead
    # With run-ahead even vLLM can't undo a load within the step: later steps depend on it already.
    if _may(site, "fail", Trait.FAILURES) and not run_ahead:
        choices[Kind.SPOIL] = lambda random: {
            "rank": random.choice(ranks),
            **({"load": True} if _has_loaded_in_step(site) and random.random() < OF_LOADS else {}),
        }
    if _may(site, "restart", Trait.FAILURES):
        choices[Kind.RESTART] = lambda random: {
            "rank": random.choice(ranks),
            "memory": not run_ahead and random.random() < 0.5,
        }


def _add_copies(site: Site, choices: Choices) -> None:
    startable = [(d.rank, copy) for d in site.engine.devices for copy in d.copies.startable()]
    if not startable:
        return

    def one(random: Random) -> Args:
        rank, copy = random.choice(startable)
        return {"rank": rank, "copy": copy.copy_id}

    choices[Kind.SETTLE] = {}
    choices[Kind.FINISH] = one
    choices[Kind.ADVANCE] = lambda random: {**one(random), "pages": random.randint(1, 2)}
    if _may(site, "fail", Trait.FAILURES):
        choices[Kind.FAIL] = one
    if _may(site, "lose", Trait.LOSSES):
        choices[Kind.LOSE] = one
    ended = [(d.rank, copy) for d in site.engine.devices for copy in d.copies.ended[-3:]]
    if ended and _may(site, "repeat", Trait.REPEATS):

        def again(random: Random) -> Args:
            rank, copy = random.choice(ended)
            return {"rank": rank, "copy": copy.copy_id}

        choices[Kind.REPEAT] = again


def _add_lost_copies(site: Site, choices: Choices) -> None:
    if site.config.writes_before_fences or not _may(site, "lose", Trait.LOSSES):
        return
    lost = [(device.rank, copy.copy_id) for device in site.engine.devices for copy in device.copies.lost()]
    if lost:
        choices[Kind.FIND] = lambda random: dict(zip(("rank", "copy"), random.choice(lost), strict=True))


def _may(site: Site, kind: str, trait: Trait) -> bool:
    return kind not in site.config.silent and trait in site.subject.traits


def _whom_to_abort(random: Random, unfinished: list[SimRequest]) -> str:
    """The id of a request; more often of one that loads, since loads are rare."""
    loading = [request for request in unfinished if request.awaits_load]
    return random.choice(loading if loading and random.random() < 0.75 else unfinished).request_id
