"""Planted where a job or pull is given up after its timeout: its copy may still go on reading and writing."""

from kv_api import KVConnectorMetadata, KVConnectorTransferResults
from kv_offload.scheduler.outcomes import Outcomes
from kv_offload.scheduler.state.jobs import Report
from kv_p2p import P2PWorkerSide
from kv_sim.offload.host_memory import TimedOffloadingConnector, TimedWorkerSide
from kv_sim.p2p import TimedP2PWorkerSide, WorldP2PConnector, WorldWire
from kv_sim.zoo.offload import PartedScheduler
from kv_sim.zoo.planted import with_parts


class _FencesTheLiving(TimedWorkerSide):
    def handle_preemptions(self, kv_connector_metadata: KVConnectorMetadata) -> None:
        self._jobs.is_at_work = self._jobs.running.__contains__  # type: ignore[assignment, method-assign]
        super().handle_preemptions(kv_connector_metadata)


class GivenUpIsNotFenced(TimedOffloadingConnector):
    """A given-up job isn't waited for when its blocks get a new owner, although it may still write them."""

    worker_class = _FencesTheLiving


class _FreesAtOnce(Outcomes):
    def _take_report(self, report: Report) -> None:
        super()._take_report(report)
        job = report.job
        if report.is_done and not report.is_stale and job.unended:
            self._complete(job)
            job.keys = ()


class GivenUpRoomIsFree(TimedOffloadingConnector):
    """The host memory of a given-up job is freed at once, so its copy goes on in memory that other chunks use."""

    scheduler_class = with_parts(PartedScheduler, outcomes=_FreesAtOnce)


class _GoesOn(WorldWire):
    def give_up(self, request_id: str) -> bool:
        for kind in (self.sent, self.received):
            for copy in [copy for copy, one in kind.items() if one.pull.request_id == request_id]:
                del kind[copy]
        return True


class GivenUpPullGoesOn(WorldP2PConnector):
    """A pull that takes too long is forgotten but not stopped, so it writes blocks that others have by then."""

    wire_class = _GoesOn


class _SendsOn(WorldWire):
    def withdraw(self, hold_id: str) -> bool:
        if any(one.pull.source.hold_id == hold_id for one in self._that_move(self.sent)):
            return False
        self.holds.pop(hold_id, None)
        return True


class WithdrawnHoldIsSent(WorldP2PConnector):
    """A hold ends although a stalled sender may still send its blocks, which by then belong to other requests."""

    wire_class = _SendsOn


class _ForgetsAborted(TimedP2PWorkerSide):
    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        results = super().get_transfer_results(finished_req_ids)
        wire = self.wire
        assert isinstance(wire, WorldWire), f"the wire is {wire!r}"
        moving = {one.pull.request_id for kind in (wire.sent, wire.received) for one in wire._that_move(kind)}
        for request_id in sorted((finished_req_ids & self._pulling.keys()) - moving):
            for kind in (wire.sent, wire.received):
                for copy in [copy for copy, one in kind.items() if one.pull.request_id == request_id]:
                    del kind[copy]
            self._end_pull(request_id, results)
        return results


class AbortedPullGoesOn(WorldP2PConnector):
    """The stalled pull of an aborted request is neither awaited nor stopped."""

    worker_class = _ForgetsAborted


class _LooksAtTheClock(P2PWorkerSide):
    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        late = KVConnectorTransferResults()
        self._end_what_is_late(late)
        results = super().get_transfer_results(finished_req_ids)
        results.finished_sending |= late.finished_sending
        results.finished_recving |= late.finished_recving
        results.failed_recving |= late.failed_recving
        return results


class _LooksAtTheClockFirst(TimedP2PWorkerSide, _LooksAtTheClock):
    """The wrong worker, watched by the testbed like the right one."""


class GivenUpThoughHere(WorldP2PConnector):
    """It gives up pulls that are out of time before it polls, although all of their blocks may have arrived."""

    worker_class = _LooksAtTheClockFirst
