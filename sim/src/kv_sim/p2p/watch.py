"""``TimedP2PWorkerSide``: kv-p2p's worker side with the world's clock, and with checks of what it reports."""

from typing import Any, Final

from kv_api import Direction, ForwardContext, KVCaches, KVConnectorTransferResults
from kv_p2p import P2PWorkerSide
from kv_p2p.pulling.metadata import Pull
from kv_sim.memory.copy import Copy, State
from kv_sim.memory.device import Device
from kv_sim.p2p.wire import WorldWire
from kv_sim.violation import Invariant

STATES: Final = {State.RUNNING: "is under way", State.LOST: "was lost"}


class TimedP2PWorkerSide(P2PWorkerSide):
    """Its clock counts steps that computed nothing while no copy was under way, except lost ones.

    It checks its own reports, since these mistakes break nothing else: a hold that ends early can't be pulled, and
    a pull that fails without a reason, or after all its blocks came, only makes the request compute its prompt.
    And if a hold or pull ends while one of its copies may still move bytes, maybe a lost one that is found much
    later, these bytes seldom hit a block in use.
    """

    _seconds = 0
    _waited_steps = 0

    def register_kv_caches(self, kv_caches: KVCaches) -> None:
        self._device = self.device_of(kv_caches)
        self._holds: dict[str, tuple[str, float]] = {}
        """Request -> its hold, and the time from which that may end without a pull."""
        self._pulls: dict[str, tuple[Pull, float]] = {}
        """Request -> its pull, and the time from which that may be given up."""
        self._lost: set[int] = set()
        """Blocks of pulls that failed in this step."""
        super().register_kv_caches(kv_caches)

    def device_of(self, kv_caches: KVCaches) -> Device:
        """The device of these caches. Override it for caches that aren't the testbed's."""
        device: Device = next(iter(kv_caches.values())).device
        return device

    def start_load_kv(self, forward_context: ForwardContext, **kwargs: Any) -> None:
        told = self._told()
        waited, self._waited_steps = self._waited_steps, self._device.waited_steps
        self._seconds += told.is_idle and waited < self._waited_steps
        options, now = self._kv_transfer_config.kv_connector_extra_config, self.clock()
        for hold in told.holds:
            self._holds[hold.request_id] = hold.hold_id, now + options["hold_seconds"]
        for pull in told.pulls:
            self._pulls[pull.request_id] = pull, now + options["pull_seconds"]
        for request_id in self._holds.keys() & set(told.revoked):
            self._holds[request_id] = self._holds[request_id][0], now
        super().start_load_kv(forward_context, **kwargs)

    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        results = super().get_transfer_results(finished_req_ids)
        wire, now = self.wire, self.clock()
        assert isinstance(wire, WorldWire), f"the wire is {wire!r}"
        self._lost.clear()
        came = {request_id for request_id in results.failed_recving - wire.failed if wire.has_filled(request_id)}
        for request_id in [name for name in self._holds if name not in self.held_requests]:
            hold_id, end = self._holds.pop(request_id)
            self._must_be_over(
                wire.forget(Direction.STORE, hold_id), f"the hold of request {request_id} has ended"
            )
            if hold_id not in wire.over and now < end:
                what = f"the hold of request {request_id} has ended, but it was neither pulled nor declined"
                self._refuse(what, end - now)
        for request_id in [name for name in self._pulls if name not in self.pulling_requests]:
            pull, end = self._pulls.pop(request_id)
            self._must_be_over(
                wire.forget(Direction.LOAD, request_id), f"the pull of request {request_id} has ended"
            )
            if request_id in results.failed_recving:
                self._lost.update(pull.block_ids)
                if request_id not in wire.failed and now < end:
                    self._refuse(f"the pull of request {request_id} failed, but none of its copies did", end - now)
                if request_id in came:
                    self._refuse(f"the pull of request {request_id} failed, but all of its blocks had arrived")
        wire.over.intersection_update(hold_id for hold_id, _ in self._holds.values())
        wire.failed.intersection_update(self._pulls)
        return results

    def get_block_ids_with_load_errors(self) -> set[int]:
        unfilled = super().get_block_ids_with_load_errors()
        if more := sorted(unfilled - self._lost):
            self._refuse(f"blocks {more} weren't filled, but no pull of them failed in this step")
        return unfilled

    def _must_be_over(self, copies: list[Copy], what: str) -> None:
        for copy in copies:
            may = "may still read" if copy.direction is Direction.STORE else "may still write"
            but = f"but {copy}, which {STATES[copy.state]}, {may} its blocks {copy.blocks_left}"
            where = f"worker {self._device.rank} side reports"
            self._device.shadow.fail(Invariant.OWNERSHIP, f"{where}: {what}, {but}")

    def _refuse(self, what: str, seconds: float | None = None) -> None:
        left = f", and it had {seconds:g} seconds left" if seconds is not None else ""
        self._device.shadow.fail(Invariant.PROTOCOL, f"worker {self._device.rank} side reports: {what}{left}")

    def clock(self) -> float:
        """The steps that were counted, as seconds."""
        return float(self._seconds)
