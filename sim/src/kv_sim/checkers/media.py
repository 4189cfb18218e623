"""The media of a connector: where their guards stand, and what is asked of these at rest."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

from kv_api import OffloadingManager
from kv_offload import OffloadingSchedulerSide
from kv_sim.checkers.conservation import owners
from kv_sim.checkers.medium import MediumGuard
from kv_sim.violation import Invariant, Referee


def guard_media(connector: Any, referee: Referee, room: Counter[str] | None = None) -> None:
    """Guard the media of a connector's scheduler side and of its children, if they are kv-offload's.

    ``room`` counts how often a store found room (``free``), and how often none (``full``).
    """
    for side in sides_of(connector):
        manager: Any = side.manager
        must_be_made("get_manager", manager, OffloadingManager, referee)
        side.manager = MediumGuard(manager, referee, room)  # type: ignore[assignment]


def must_be_made(method: str, made: object, kind: type, referee: Referee) -> None:
    """Check what a spec made for ``kind``: by its methods, since vLLM has classes of its own."""
    missing = sorted(name for name in kind.__abstractmethods__ if not hasattr(made, name))  # type: ignore[attr-defined]
    if missing:
        what = "None" if made is None else f"a {type(made).__name__}, which lacks {', '.join(missing)}"
        said = f"the medium's {method} answered {what}, expected an {kind.__name__}"
        referee.fail(Invariant.PROTOCOL, said)


def check_media(connector: Any) -> None:
    """At rest: what a connector told its media must be complete."""
    for side in sides_of(connector):
        manager: Any = side.manager
        if isinstance(manager, MediumGuard):
            manager.check_ended()


def share_media(connector: Any, other: Any) -> None:
    """Tell the guards of a connector's media which guards of another engine guard the same store."""
    for side, elsewhere in zip(sides_of(connector), sides_of(other), strict=True):
        if isinstance(side.manager, MediumGuard) and isinstance(elsewhere.manager, MediumGuard):
            side.manager.others.append(elsewhere.manager)


def sides_of(connector: Any) -> Iterator[OffloadingSchedulerSide]:
    """The sides of a connector, and of its children, that have a medium."""
    yield from (owner for owner in owners(connector) if isinstance(owner, OffloadingSchedulerSide))
