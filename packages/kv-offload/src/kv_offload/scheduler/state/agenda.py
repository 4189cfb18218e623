"""The agenda: in which step a request has to be looked at, so that a step costs nothing for all others.

**Theory of operation.** Steps have numbers; ``step`` is that of the next one. A request is put on the agenda of
the first step in which it could have something to store, assuming that it computes one token in each step until
then. A request that computes more than one token in a step is looked at in that step, wherever it is on the
agenda. So no request is looked at too late, and one that is looked at too early is put off again. A request that
is on the agenda already is never put off: otherwise a prompt that is computed in many steps would move in each of
them.

Each request that has blocks is on the agenda or *through*. It is put on the agenda when a step tells of all its
blocks, and leaves it when it loses them or ends. A look takes a request off; whoever looks puts it on again. A
request is through when nothing that it computes from now on is stored, as with ``offload_prompt_only`` after its
prompt. Nobody needs to know its further blocks, so it costs nothing in the steps in which it decodes.

**Invariants** (``check``): a request is on the agenda of one step, which is not over, or it is through.
"""

from collections.abc import Iterable, Mapping


class Agenda:
    """Request ids by the step in which they are looked at."""

    def __init__(self) -> None:
        self.step = 0
        self._step_of: dict[str, int] = {}
        self.through: set[str] = set()
        """Requests that have blocks and store nothing more. To be changed by the methods only."""
        self._ids_in: dict[int, set[str]] = {}
        """Only ever asked whether an id is in it: the order of looks is that of the step."""

    def put(self, request_id: str, step: int) -> None:
        """Look at a request in ``step`` at the latest, or in the next step if that one is over."""
        if step < self.step:
            step = self.step
        known = self._step_of.get(request_id)
        if known is not None:
            if known <= step:
                return
            self.remove(request_id)
        else:
            self.through.discard(request_id)
        self._step_of[request_id] = step
        self._ids_in.setdefault(step, set()).add(request_id)

    def remove(self, request_id: str) -> None:
        """The request has no blocks any more."""
        step = self._step_of.pop(request_id, None)
        if step is None:
            self.through.discard(request_id)
        else:
            ids = self._ids_in[step]
            ids.remove(request_id)
            if not ids:
                del self._ids_in[step]

    def close(self, request_id: str) -> None:
        """The request has blocks, and stores nothing more."""
        self.remove(request_id)
        self.through.add(request_id)

    def hasten(self, request_id: str) -> None:
        """Something changed: look at the request in the next step, if it has blocks."""
        if request_id in self:
            self.put(request_id, self.step)

    def take(self, counts: Mapping[str, int]) -> list[str]:
        """Begin the next step, which computes ``counts`` tokens. Returns the requests to look at, in its order.

        A request that is due and not in this step is due in the next one.
        """
        due = self._ids_in.pop(self.step, set())
        self.step += 1
        for request_id in due:
            del self._step_of[request_id]
        if sum(counts.values()) == len(counts):  # each computes one token
            looks = [*filter(due.__contains__, counts)] if due else []
        else:
            looks = [request_id for request_id, count in counts.items() if count > 1 or request_id in due]
        if not due <= counts.keys():
            for request_id in due.difference(counts):
                self.put(request_id, self.step)
        return looks

    def skip(self, steps: int) -> None:
        """Pass steps in which nobody has anything to store. Requests that are due in them are due in the next."""
        self.step += steps
        for step in [step for step in self._ids_in if step < self.step]:
            for request_id in self._ids_in.pop(step):
                del self._step_of[request_id]
                self.put(request_id, self.step)

    def __contains__(self, request_id: str) -> bool:
        """Whether a request is on the agenda or through, and so has blocks."""
        return request_id in self._step_of or request_id in self.through

    def step_of(self, request_id: str) -> int | None:
        """When a request is looked at. None: it is not on the agenda."""
        return self._step_of.get(request_id)

    def check(self, with_blocks: Iterable[str]) -> None:
        """Recount. ``with_blocks`` are the requests that have blocks."""
        listed = {request_id: step for step, ids in self._ids_in.items() for request_id in ids}
        total = sum(map(len, self._ids_in.values()))
        assert len(listed) == total, f"{total} entries for {len(listed)} requests"
        assert listed == self._step_of, f"requests by step {self._ids_in}, steps by request {self._step_of}"
        assert all(self._ids_in.values()), f"a step has an empty agenda: {self._ids_in}"
        over = sorted(step for step in self._ids_in if step < self.step)
        assert not over, f"steps {over} have an agenda, and the next one is {self.step}"
        both = sorted(self.through.intersection(listed))
        assert not both, f"{both} are through, and on the agenda"
        known, expected = sorted(self.through.union(listed)), sorted({*with_blocks})
        assert known == expected, f"on the agenda or through {known}, with blocks {expected}"
