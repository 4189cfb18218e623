"""``Planted``: a bug that a real connector had, put into one of ours on purpose."""

from dataclasses import dataclass, replace
from typing import TypeVar

from kv_sim.subject import Subject
from kv_sim.violation import Invariant

Side = TypeVar("Side")


@dataclass(frozen=True, eq=False)
class Planted:
    """One planted bug: a connector class of this package that is right except for one mistake."""

    name: str
    """The name of its connector class."""
    issue: str
    """The public issue or pull request that reports the mistake; vLLM's if it is only a number."""
    mechanism: str
    invariant: Invariant
    """The checker that is expected to catch it."""
    subject: Subject
    others: frozenset[Invariant] = frozenset()
    """Checkers that may catch it if the expected one is switched off. If empty, it survives then."""


def plant(connector: type, issue: str, invariant: Invariant, healthy: Subject, *others: Invariant) -> Planted:
    """Make a bug: ``connector`` replaces the right class of ``healthy``; its docstring describes the mistake."""
    subject = replace(healthy, kv_connector=connector.__name__, module_path=connector.__module__)
    mechanism = " ".join((connector.__doc__ or "").split())
    return Planted(connector.__name__, issue, mechanism, invariant, subject, frozenset(others))


def with_parts(side: type[Side], **parts: type) -> type[Side]:
    """The side of a right connector with wrong parts, each by its name in the class body of ``side``."""
    for name, part in parts.items():
        right = vars(side).get(name)
        assert right is not None and issubclass(part, right), f"{side.__name__}.{name} is {right}, got {part}"
    made: type[Side] = type(side.__name__, (side,), parts)
    return made
