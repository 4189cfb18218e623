"""WORK: retries and waiting are bounded.

A connector that answers "ask again" for ever starves a request without any error. A worker that waits for an
asynchronous load in ``start_load_kv`` keeps the whole engine from computing meanwhile.
"""

from collections.abc import Iterable

from kv_api import Direction
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


def check_waits(rank: int, waited: Iterable[Copy], shadow: Shadow, referee: Referee) -> None:
    """Check the copies that a worker waited for in ``start_load_kv``."""
    for copy in waited:
        if copy.direction is Direction.LOAD and any(block in shadow.load_rights for block, _ in copy.pairs):
            referee.fail(
                Invariant.WORK,
                f"worker {rank} side, start_load_kv waited for load copy {copy.copy_id} (of "
                f"{', '.join(copy.owners)}), which is asynchronous: the engine computes nothing meanwhile",
            )
