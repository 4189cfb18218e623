"""Two reports of one request: it is aborted while it loads, and a child still wants to store it.

The engine holds the blocks of an aborted request while its load is in flight, and frees them at the *first*
report of either kind; the second one kills it. A worker can't prevent that: when the request is aborted, its
report of the load may be on its way already. But every report passes the scheduler's side before the engine acts
on it, joined over all workers. So the first of the two is taken out of the output there, and the last one frees
the blocks.

State: for each such request the kinds of report that are still to come. Only the outermost of nested
MultiConnectors does this (``children.is_outermost``); an inner one reports both to its parent.
"""

from kv_api import KVConnectorOutput

_FIELDS = ("finished_recving", "finished_sending")


class LastReport:
    """Lets only the last of two reports reach the engine."""

    def __init__(self) -> None:
        self._missing: dict[str, list[str]] = {}

    def watch(self, request_id: str) -> None:
        """From now on, wait for both reports of this request."""
        self._missing[request_id] = list(_FIELDS)

    def forget(self, request_id: str) -> None:
        """A new request has this id."""
        self._missing.pop(request_id, None)

    def filter(self, output: KVConnectorOutput) -> None:
        """Take the first reports out of the joined output of a step."""
        for name in _FIELDS:
            reported: set[str] = getattr(output, name) or set()
            early = {request_id for request_id in reported if self._cross_out(request_id, name)}
            if early:
                setattr(output, name, (reported - early) or None)

    def check(self) -> None:
        """Recount: what is watched misses at least one report."""
        for request_id, missing in self._missing.items():
            assert missing and set(missing) <= set(_FIELDS), f"{request_id}: misses {missing}"

    def _cross_out(self, request_id: str, name: str) -> bool:
        """Note a report of a request; True if its other report is still to come."""
        missing = self._missing.get(request_id, [])
        if name not in missing:
            return False
        missing.remove(name)
        if not missing:
            del self._missing[request_id]
            return False
        return True
