"""WORK: retries and waiting are bounded.

A connector that answers "ask again" for ever starves a request without any error. A worker that waits for an
asynchronous load in ``start_load_kv``, or when it is asked what has ended, keeps the whole engine from computing
meanwhile. It may wait there for the load of a request that has ended: it may have to stop the load. It may also
wait for stores, for which ``wait_for_save`` may wait, too.
"""

from collections.abc import Collection, Iterable

from kv_sim.memory.copy import Copy
from kv_sim.memory.shadow import Shadow
from kv_sim.violation import Invariant, Referee

MOST_RETRIES = 60
"""Answers "ask again" in a row for one request. Worlds finish their copies much sooner."""


class Retries:
    """Counts how often in a row each request got the answer "ask again"."""

    def __init__(self, referee: Referee) -> None:
        self._referee = referee
        self._in_a_row: dict[str, int] = {}

    def matched(self, request_id: str, answer: tuple[int | None, bool]) -> None:
        """Note one answer of ``get_num_new_matched_tokens``."""
        if answer[0] is not None:
            self._in_a_row.pop(request_id, None)
            return
        count = self._in_a_row.get(request_id, 0) + 1
        self._in_a_row[request_id] = count
        if count > MOST_RETRIES:
            self._referee.fail(
                Invariant.WORK,
                f"request {request_id}: get_num_new_matched_tokens answered 'ask again' {count} times in a row",
            )


def check_waits(
    rank: int, method: str, waited: Iterable[Copy], shadow: Shadow, referee: Referee, ended: Collection[str] = ()
) -> None:
    """Check what a worker waited for in a method. ``ended``: requests that have ended."""
    for copy in waited:
        loading = {shadow.load_rights[block] for block in copy.fills if block in shadow.load_rights}
        if loading.difference(ended):
            whose = ", ".join(copy.owners or sorted(loading))
            referee.fail(
                Invariant.WORK,
                f"worker {rank} side, {method} waited for {copy} (of {whose}), which is asynchronous: the engine "
                "computes nothing meanwhile",
            )
