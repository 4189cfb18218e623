"""``ProgressBook``: each request's block tables and computed tokens, step by step, for runner V1 and V2.

A connector learns of blocks only from ``SchedulerOutput``: whole tables of new and resumed requests, and appended
blocks of the others. If an id is finished and new in the same step, the finish comes first.
"""

from collections.abc import Iterator, Set
from dataclasses import dataclass

from kv_api import Request, SchedulerOutput


@dataclass
class Progress:
    """One request that runs."""

    request: Request
    tables: tuple[list[int], ...] = ()
    stored_blocks: int = 0
    """Leading blocks that need not be looked at again."""

    def first_in(self, blocks: Set[int]) -> int | None:
        """The first place at which any table has one of these blocks."""
        places = (place for table in self.tables for place, block in enumerate(table) if block in blocks)
        return min(places, default=None)


class ProgressBook:
    """The progress of all requests of a scheduler."""

    def __init__(self) -> None:
        self._requests: dict[str, Progress] = {}
        self._arriving: dict[str, Progress] = {}

    def arrive(self, request: Request) -> None:
        """A request was added; an older life of its id may still be here until the next step."""
        self._arriving[request.request_id] = Progress(request)

    def step(self, output: SchedulerOutput) -> Iterator[tuple[Progress, int]]:
        """Apply a step; yields each scheduled request with the tokens that are computed after it."""
        for request_id in sorted(output.finished_req_ids):
            self._requests.pop(request_id, None)
        self._requests.update(self._arriving)
        self._arriving = {}
        computed: dict[str, int] = {}
        for new in output.scheduled_new_reqs:
            self._restart(new.req_id, new.block_ids)
            computed[new.req_id] = new.num_computed_tokens
        cached = output.scheduled_cached_reqs
        for index, request_id in enumerate(cached.req_ids):
            blocks = cached.new_block_ids[index]
            computed[request_id] = cached.num_computed_tokens[index]
            if request_id in cached.resumed_req_ids:
                self._restart(request_id, blocks or ())
            elif blocks is not None:
                for table, appended in zip(self._requests[request_id].tables, blocks, strict=True):
                    table.extend(appended)
        for request_id, count in output.num_scheduled_tokens.items():
            yield self._requests[request_id], computed[request_id] + count

    def _restart(self, request_id: str, blocks: tuple[list[int], ...]) -> None:
        progress = self._requests[request_id]
        progress.tables = tuple(list(table) for table in blocks)
        progress.stored_blocks = 0

    def forget(self, request_id: str) -> None:
        """The request has ended: if no step has seen it yet, none has to."""
        self._arriving.pop(request_id, None)
