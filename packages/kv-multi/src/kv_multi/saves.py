"""Holds of finished requests: their blocks are held until the last child that still stores them has reported.

The scheduler's side (``Holds``) knows which children answered True when the request ended, and tells the workers
*which*, not how many: so a report that is repeated, late, of a child that isn't storing or of an unknown request
can be told from an awaited one. Each worker's side (``SaveReports``) counts for its own process: it reports a
request once, when the last of those children has reported it.

A child with ``save: false`` is told so by its role, which becomes ``kv_consumer``, and the two hooks that only
offer data, ``save_kv_layer`` and ``register_finished_partial_tail``, are not called. So a child that obeys its
role stores nothing, and neither does one that stores in the layer hook. A child that ignores its role and plans
its stores in its scheduler side, or copies in ``wait_for_save``, still stores. Nothing keeps it from that, since
all other calls are bookkeeping. A planned store that never ran would be waited for for ever. And blocks that a
child holds (True from ``request_finished``) must not be freed under its copy, whatever it was told.
"""

from collections.abc import Iterable, Mapping


class Holds:
    """Scheduler's side. For each finished request that is held: the children that hold it.

    ``_held`` is from the request's end to its report; ``_untold`` is the part that no metadata has told yet.
    """

    def __init__(self) -> None:
        self._held: dict[str, tuple[int, ...]] = {}
        self._untold: dict[str, tuple[int, ...]] = {}

    def add(self, request_id: str, children: Iterable[int]) -> None:
        """Add children that hold the blocks of ``request_id``."""
        held = tuple(sorted({*self._held.get(request_id, ()), *children}))
        if held:
            self._held[request_id] = self._untold[request_id] = held

    def holders(self, request_id: str) -> tuple[int, ...]:
        """The children that hold the blocks of ``request_id``."""
        return self._held.get(request_id, ())

    def tell(self) -> dict[str, tuple[int, ...]]:
        """The holds since the last call, for the step's metadata."""
        told, self._untold = self._untold, {}
        return told

    def release(self, request_ids: Iterable[str]) -> None:
        """All workers have reported these requests."""
        for request_id in request_ids:
            self._held.pop(request_id, None)

    def forget(self, request_id: str) -> None:
        """A new request has this id."""
        self._held.pop(request_id, None)
        self._untold.pop(request_id, None)

    def check(self, num_children: int) -> None:
        """Recount: every hold is by somebody, and what is untold is held."""
        for request_id, held in self._held.items():
            assert held and list(held) == sorted(set(held)), f"{request_id}: held by {held}"
            assert set(held) <= set(range(num_children)), (
                f"{request_id}: held by {held} of {num_children} children"
            )
        for request_id, untold in self._untold.items():
            held = self._held.get(request_id, ())
            assert untold == held, f"{request_id}: {untold} untold, {held} held"


class SaveReports:
    """Worker's side. For each held request: the children that have yet to report it in this process."""

    def __init__(self) -> None:
        self._waiting: dict[str, set[int]] = {}
        self._done: set[str] = set()

    def expect(self, async_saves: Mapping[str, tuple[int, ...]]) -> None:
        """Take the holds in a step's metadata. An id that comes again is a new request."""
        for request_id, children in async_saves.items():
            self._waiting[request_id] = set(children)
            self._done.discard(request_id)

    def report(self, child: int, request_ids: Iterable[str]) -> None:
        """A child's stores of these requests ended. Requests that it doesn't hold are ignored."""
        for request_id in request_ids:
            waiting = self._waiting.get(request_id)
            if waiting is None or child not in waiting:
                continue
            waiting.remove(child)
            if not waiting:
                del self._waiting[request_id]
                self._done.add(request_id)

    def abandon(self, child: int) -> None:
        """A child was switched off: its holds end."""
        self.report(child, [*self._waiting])

    def take(self) -> set[str]:
        """The requests whose last report came since the last call."""
        done, self._done = self._done, set()
        return done

    def check(self, num_children: int) -> None:
        """Recount: nobody waits for nothing, nor for what was reported."""
        for request_id, waiting in self._waiting.items():
            assert waiting, f"{request_id}: waits for no child"
            assert waiting <= set(range(num_children)), f"{request_id}: waits for {sorted(waiting)}"
            assert request_id not in self._done, f"{request_id}: reported, and still waiting for {sorted(waiting)}"
