"""What workers tell the scheduler after a step, and how the reports of all ranks become one.

State of ``KVOutputAggregator``: for each request id in transit, how many ranks have yet to report it (once for
stores, once for loads); the loads that some rank failed and not every rank has finished; and outputs that were
deferred from a failed step. An id is reported to the scheduler exactly when its last rank reports it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from kv_api.events import KVConnectorKVEvents
from kv_api.metadata import KVConnectorWorkerMetadata
from kv_api.stats import KVConnectorStats


@dataclass
class KVConnectorTransferResults:
    """Asynchronous transfers that ended in one worker since the last report.

    An id in ``failed_recving`` is in ``finished_recving`` too: the request stops waiting either way.
    """

    finished_sending: set[str] = field(default_factory=set)
    finished_recving: set[str] = field(default_factory=set)
    failed_recving: set[str] = field(default_factory=set)


@dataclass
class KVConnectorOutput:
    """One worker's report after a step or, aggregated, that of all of them.

    ``invalid_block_ids`` are blocks that a load was to fill and didn't; ``failed_recving`` names requests
    instead, which stays unambiguous with several groups. ``expected_finished_count`` > 0 changes how many
    reports complete a request from now on.
    """

    finished_sending: set[str] | None = None
    finished_recving: set[str] | None = None
    kv_connector_stats: KVConnectorStats | None = None
    kv_cache_events: KVConnectorKVEvents | None = None
    kv_connector_worker_meta: KVConnectorWorkerMetadata | None = None
    invalid_block_ids: set[int] = field(default_factory=set)
    failed_recving: set[str] = field(default_factory=set)
    expected_finished_count: int = 0

    def is_empty(self) -> bool:
        """Whether there is nothing to tell the scheduler."""
        return not (
            self.finished_sending
            or self.finished_recving
            or self.kv_connector_stats
            or self.kv_cache_events
            or self.kv_connector_worker_meta
            or self.invalid_block_ids
            or self.failed_recving
        )


class ModelRunnerOutput(Protocol):
    """One worker's output of a step; the aggregate replaces its ``kv_connector_output``."""

    kv_connector_output: KVConnectorOutput | None


class _ReportsFinishedCount(Protocol):
    def get_finished_count(self) -> int | None: ...


_Output = TypeVar("_Output", bound=ModelRunnerOutput)


class KVOutputAggregator:
    """Joins the reports of all workers into the one that the scheduler's connector sees."""

    def __init__(self, expected_finished_count: int) -> None:
        if expected_finished_count < 1:
            raise ValueError(f"expected_finished_count: at least 1, got {expected_finished_count}")
        self._expected_finished_count = expected_finished_count
        self._stores_remaining: dict[str, int] = {}
        self._loads_remaining: dict[str, int] = {}
        self._failed_pending: set[str] = set()
        self._deferred: list[KVConnectorOutput] = []

    @classmethod
    def from_connector(cls, connector: _ReportsFinishedCount, world_size: int) -> "KVOutputAggregator":
        """Expect what the scheduler's connector says, or a report of every worker."""
        return cls(connector.get_finished_count() or world_size)

    def aggregate(self, outputs: Sequence[_Output | None], output_rank: int = 0) -> _Output | None:
        """Put the joined report into the output of ``output_rank`` and return that output.

        ``None`` when that rank has none. Any other rank without an output is a broken step.
        """
        if not 0 <= output_rank < len(outputs):
            raise IndexError(f"output_rank: got {output_rank}, but there are {len(outputs)} outputs")
        chosen = outputs[output_rank]
        if chosen is None:
            return None
        missing = [rank for rank, output in enumerate(outputs) if output is None]
        assert not missing, f"rank {output_rank} has an output, ranks {missing} have none"
        reports = [output.kv_connector_output for output in outputs if output is not None]
        chosen.kv_connector_output = self.aggregate_reports(reports)
        return chosen

    def aggregate_reports(self, reports: Iterable[KVConnectorOutput | None]) -> KVConnectorOutput:
        """Join the reports of one step, after those that an earlier step deferred."""
        deferred, self._deferred = self._deferred, []
        present = [report for report in (*deferred, *reports) if report is not None]
        joined = KVConnectorOutput()
        sent: set[str] = set()
        received: set[str] = set()
        for report in present:
            if report.expected_finished_count > 0:
                self._expected_finished_count = report.expected_finished_count
            sent |= self._count(report.finished_sending, self._stores_remaining)
            received |= self._count(report.finished_recving, self._loads_remaining)
            joined.invalid_block_ids |= report.invalid_block_ids
            self._failed_pending |= report.failed_recving
            _join_payloads(joined, report)
        joined.finished_sending = sent or None
        joined.finished_recving = received or None
        joined.failed_recving = self._failed_pending & received
        self._failed_pending -= joined.failed_recving
        joined.expected_finished_count = self._expected_finished_count
        return joined

    def ft_defer_kv_connector_outputs(self, kv_connector_outputs: Iterable[KVConnectorOutput | None]) -> None:
        """Keep the reports of a step that failed, for the next one to join.

        Their KV events are dropped: counted again they would spoil the agreement of the live workers, and a
        missing event costs only a cache miss.
        """
        for report in kv_connector_outputs:
            if report is not None:
                report.kv_cache_events = None
                self._deferred.append(report)

    def _count(self, request_ids: set[str] | None, remaining: dict[str, int]) -> set[str]:
        """Count one report of each id; return those that this report completes."""
        complete: set[str] = set()
        for request_id in request_ids or ():
            left = remaining.get(request_id, self._expected_finished_count) - 1
            if left > 0:
                remaining[request_id] = left
            else:
                remaining.pop(request_id, None)
                complete.add(request_id)
        return complete

    def check(self) -> None:
        """Recount: nothing is remembered of an id that has no report outstanding."""
        for remaining in (self._stores_remaining, self._loads_remaining):
            for request_id, left in remaining.items():
                assert left > 0, f"request {request_id}: {left} reports outstanding"


def _join_payloads(joined: KVConnectorOutput, report: KVConnectorOutput) -> None:
    """Aggregate what the classes of a connector know how to aggregate."""
    if report.kv_connector_stats is not None:
        stats = joined.kv_connector_stats
        joined.kv_connector_stats = (
            report.kv_connector_stats if stats is None else stats.aggregate(report.kv_connector_stats)
        )
    if report.kv_connector_worker_meta is not None:
        meta = joined.kv_connector_worker_meta
        joined.kv_connector_worker_meta = (
            report.kv_connector_worker_meta if meta is None else meta.aggregate(report.kv_connector_worker_meta)
        )
    if report.kv_cache_events is not None:
        events = joined.kv_cache_events
        if events is None:
            joined.kv_cache_events = report.kv_cache_events
        else:
            events.add_events(report.kv_cache_events.get_all_events())
            events.increment_workers(1)
