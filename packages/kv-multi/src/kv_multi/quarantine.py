"""Quarantine: catches the exceptions of children and switches those children off, if so configured.

With ``on_child_error: raise`` nothing is caught. With ``quarantine`` a child that raises in a method of a request
or of a step is switched off in its process: it is logged once, named in stats, and never called again; instead of
its answer callers get a neutral value that they pass to ``ask``. Construction, registration and shutdown are
never guarded.

A copy that goes on after its child is switched off would write into blocks that belong to other requests by then.
So switching off means shutting down: ``shutdown`` finishes or cancels every transfer, and only after it has
returned may loads be reported as failed and stores as ended. If ``shutdown`` raises, too, the exception is
raised.

State: ``_reasons``, the children that are off, and why; ``_told``, those of which the other side (scheduler,
workers) has been told.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import ParamSpec, TypeVar

from kv_multi.children import Child
from kv_multi.options import OnChildError

P = ParamSpec("P")
T = TypeVar("T")

_log = logging.getLogger("kv_multi")


class Quarantine:
    """The children of one MultiConnector object, and which of them are off."""

    def __init__(
        self, children: Sequence[Child], on_child_error: OnChildError, on_switch_off: Callable[[Child], None]
    ) -> None:
        self._children = tuple(children)
        self._catches = on_child_error is OnChildError.QUARANTINE
        self._on_switch_off = on_switch_off
        self._reasons: dict[str, str] = {}
        self._told: set[str] = set()

    @property
    def may_happen(self) -> bool:
        """Whether a child can be switched off at all."""
        return self._catches

    def ask(self, child: Child, method: Callable[P, T], neutral: T, *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a child's method; ``neutral`` is the answer of a child that is off, or now becomes so."""
        if child.name in self._reasons:
            return neutral
        if not self._catches:
            return method(*args, **kwargs)
        try:
            return method(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 - the user asked for it; it is logged and named in stats
            name = getattr(method, "__name__", "a method").lstrip("_")
            self._switch_off(child, f"{name} raised {type(error).__name__}: {error}", error)
            return neutral

    def obey(self, reasons: Mapping[str, str]) -> None:
        """Switch off the children that another process has switched off."""
        for child in self._children:
            if child.name in reasons and child.name not in self._reasons:
                self._switch_off(child, reasons[child.name], None)

    def is_off(self, child: Child) -> bool:
        """Whether a child is switched off here."""
        return child.name in self._reasons

    def live(self) -> Iterator[Child]:
        """The children that are not switched off."""
        return (child for child in self._children if child.name not in self._reasons)

    def reasons(self) -> dict[str, str]:
        """The children that are off, and why."""
        return dict(self._reasons)

    def untold(self) -> dict[str, str]:
        """The children that are off and of which the other side has not been told yet."""
        return {name: reason for name, reason in self._reasons.items() if name not in self._told}

    def mark_told(self, names: Iterable[str]) -> None:
        """The other side has been told of these."""
        self._told.update(names)

    def check(self) -> None:
        """Recount: only children are off, and only where that may happen."""
        names = {child.name for child in self._children}
        assert set(self._reasons) <= names, f"off: {sorted(self._reasons)}, children: {sorted(names)}"

    def _switch_off(self, child: Child, reason: str, error: Exception | None) -> None:
        self._reasons[child.name] = reason
        _log.error("connector %r is switched off: %s", child.name, reason, exc_info=error)
        try:
            child.connector.shutdown()
            self._on_switch_off(child)
        except Exception as second:
            second.add_note(f"while switching off connector {child.name!r}, because {reason}")
            raise
