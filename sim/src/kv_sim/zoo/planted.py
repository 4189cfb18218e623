"""``Planted``: a bug that some connector had, brought back into one of ours on purpose."""

from dataclasses import dataclass, replace

from kv_sim.subject import Subject
from kv_sim.violation import Invariant


@dataclass(frozen=True, eq=False)
class Planted:
    """One planted bug: a connector class of this package that is right but for one mechanism."""

    name: str
    """Its connector class."""
    issue: str
    """The public thread that tells of the mechanism; vLLM's where only a number stands."""
    mechanism: str
    invariant: Invariant
    """The checker that is expected to catch it."""
    subject: Subject
    others: frozenset[Invariant] = frozenset()
    """Checkers that may catch it when the expected one is switched off. None: it survives then."""


def plant(connector: type, issue: str, invariant: Invariant, healthy: Subject, *others: Invariant) -> Planted:
    """The class ``connector`` takes the place of the right one in ``healthy``; its docstring is the mechanism."""
    subject = replace(healthy, kv_connector=connector.__name__, module_path=connector.__module__)
    mechanism = " ".join((connector.__doc__ or "").split())
    return Planted(connector.__name__, issue, mechanism, invariant, subject, frozenset(others))
