"""CONSERVATION: after all requests and copies have ended no block is held, and no object remembers a request.

Checked are the engine's own books, what a connector's objects remember, and their own ``check()``.
"""

from collections.abc import Iterator
from typing import Any, Final

from kv_api import TwoSidedConnector
from kv_sim.checkers.answers import shown
from kv_sim.engine.engine import Engine
from kv_sim.guard import crashes
from kv_sim.violation import Invariant


def check_engine(engine: Engine) -> None:
    """The engine holds no blocks and no loads any more; otherwise a connector kept them from being freed."""
    scheduler, referee = engine.scheduler, engine.referee
    pool = scheduler.blocks.block_pool
    held = [block for block, count in enumerate(pool.ref_counts) if count]
    if held:
        owners = sorted({engine.shadow.owner(block) for block in held})
        referee.fail(Invariant.CONSERVATION, f"GPU blocks {held} (of {', '.join(owners)}) are never freed")
    if engine.shadow.load_rights:
        requests = sorted(set(engine.shadow.load_rights.values()))
        referee.fail(Invariant.CONSERVATION, f"the end of the loads of requests {requests} was never reported")


def check_connectors(engine: Engine) -> None:
    """No connector object remembers a request that has ended, unless a copy of it was lost."""
    lost = {owner for device in engine.devices for copy in device.copies.running.values() for owner in copy.owners}
    ended = {r.request_id for r in engine.outcome.ended if f"request {r.request_id}" not in lost}
    for connector in engine.connectors:
        for path, value in _strings(connector, type(connector).__name__, engine.own_modules, set(), 0):
            if value in ended:
                engine.referee.fail(
                    Invariant.CONSERVATION,
                    f"request {value} has ended, everything is at rest, and {path} still remembers it",
                )


def check_books(engine: Engine) -> None:
    """The ``check`` of every connector object that has one passes: it recounts the object's state and asserts."""
    for connector in engine.connectors:
        for owner in owners(connector):
            check = getattr(owner, "check", None)
            if check is None:
                continue
            called = f"at rest, {type(owner).__name__}.check()"
            with crashes(engine.referee, called):  # books may be so wrong that they can't be counted
                try:
                    check()
                except AssertionError as error:
                    engine.referee.fail(Invariant.CONSERVATION, f"{called} fails: {error}")


def check_sides(engine: Engine) -> None:
    """If one side of a connector is switched off (``has_ended``), all its sides are."""
    for sides in zip(*map(owners, engine.connectors), strict=True):
        ended = [side for side in sides if getattr(side, "has_ended", False)]
        if ended and len(ended) < len(sides):
            engine.referee.fail(
                Invariant.CONSERVATION,
                f"at rest, {len(ended)} of {len(sides)} objects of {type(sides[-1]).__name__} and its workers "
                "are switched off, expected all or none",
            )


def owners(connector: Any) -> Iterator[Any]:
    """A connector, the side of it that lives, and its children."""
    yield connector
    if isinstance(connector, TwoSidedConnector):
        yield connector.side
    for child in getattr(connector, "sub_connectors", ()):
        yield from owners(child)


MOST_DEPTH = 6
GUARDED: Final = ("manager", "worker")
"""What a guard of a medium stands for. Whatever else it has is the testbed's."""


def _strings(
    value: Any, path: str, foreign: tuple[str, ...], seen: set[int], depth: int
) -> Iterator[tuple[str, str]]:
    """Every string that a connector's own objects hold, with the path to it."""
    if isinstance(value, str):
        yield path, value
        return
    if depth > MOST_DEPTH or id(value) in seen or isinstance(value, (int, float, bytes, type, type(None))):
        return
    seen.add(id(value))
    if isinstance(value, dict):
        for key, item in [*value.items()]:  # all at once: a connector's threads go on meanwhile
            yield from _strings(key, f"{path} (a key)", foreign, seen, depth + 1)
            yield from _strings(item, f"{path}[{shown(key)}]", foreign, seen, depth + 1)
    elif isinstance(value, (list, tuple, set, frozenset)) or type(value).__name__ == "deque":
        for item in [*value]:
            yield from _strings(item, f"{path}[…]", foreign, seen, depth + 1)
    elif not type(value).__module__.startswith((*foreign, "types", "builtins")):
        is_guard = type(value).__module__.startswith("kv_sim.checkers")
        for name in GUARDED if is_guard else (*getattr(value, "__dict__", ()), *slots_of(type(value))):
            yield from _strings(getattr(value, name, None), f"{path}.{name}", foreign, seen, depth + 1)


def slots_of(cls: type) -> Iterator[str]:
    """The attributes that a class keeps without a ``__dict__``."""
    for base in cls.__mro__:
        declared = base.__dict__.get("__slots__", ())
        yield from (declared,) if isinstance(declared, str) else declared
