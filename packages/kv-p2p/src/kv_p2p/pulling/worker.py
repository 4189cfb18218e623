"""The worker's side: tells its wire which holds to serve and what to pull, and reports to the engine what ended.

Only this side knows the time. It withdraws a hold that was not pulled in time, and gives up a pull that takes too
long. Either is reported only when nobody touches the blocks any more; until then the wire is asked in every step.
"""

from collections.abc import Callable, Collection
from math import inf
from typing import Any, Final, NamedTuple

from kv_api import (
    ForwardContext,
    KVCacheConfig,
    KVCaches,
    KVConnectorTransferResults,
    Tensor,
    VllmConfig,
    WorkerSide,
)
from kv_p2p.clock import Clock, read_clock
from kv_p2p.log import place_of, warn
from kv_p2p.pulling.groups import Group
from kv_p2p.pulling.metadata import Hold, P2PMetadata, Pull
from kv_p2p.pulling.options import Options
from kv_p2p.pulling.stats import (
    EXPIRED_HOLDS,
    FAILED_PULLS,
    PULL_SECONDS,
    PULLED_BYTES,
    SERVED_HOLDS,
    P2PStats,
)
from kv_p2p.pulling.wire import Wire

IDLE_SECONDS: Final = 0.002
"""Seconds that a step that computes nothing waits for the wire, so that an idle engine doesn't spin."""
QUIET_SECONDS: Final = 60.0
"""Seconds between two warnings of holds that were not pulled, at least: where a router or a consumer has gone, all
end that way, and a line for each would hide whatever else is logged."""

MakeWire = Callable[[KVCaches], Wire]


class _Pulling(NamedTuple):
    """A pull in flight."""

    pull: Pull
    began: float
    end: float
    """The time at which it counts as failed."""


class P2PWorkerSide(WorkerSide):
    """Runs the holds and pulls of one rank."""

    clock: Clock = staticmethod(read_clock)

    def __init__(
        self,
        vllm_config: VllmConfig,
        kv_cache_config: KVCacheConfig | None,
        options: Options,
        groups: tuple[Group, ...],
        make_wire: MakeWire,
    ) -> None:
        super().__init__(vllm_config, kv_cache_config)
        self._options = options
        self._make_wire = make_wire
        self._wire: Wire | None = None
        self._held: dict[str, tuple[Hold, float]] = {}
        """The holds by request, each with the time at which it ends."""
        self._request_of: dict[str, str] = {}
        """The request of each hold."""
        self._pulling: dict[str, _Pulling] = {}
        """The pulls by request."""
        self._fails_requests = len(groups) > 1
        """Whether failed pulls are reported only by request: with several groups no engine accepts failed
        blocks."""
        self._unfilled: set[int] = set()
        self._untold = 0
        """How many holds were withdrawn since the last warning of one."""
        self._quiet_until = -inf
        self._stats = P2PStats()

    @property
    def wire(self) -> Wire:
        """The worker's wire, from ``register_kv_caches`` to ``shutdown``."""
        if self._wire is None:
            raise RuntimeError("P2PConnector has no wire: register_kv_caches was not called, or shutdown was")
        return self._wire

    @property
    def held_requests(self) -> Collection[str]:
        """The requests whose blocks are held; their ends weren't reported yet."""
        return self._held.keys()

    @property
    def pulling_requests(self) -> Collection[str]:
        """The requests whose blocks are being pulled; their ends weren't reported yet."""
        return self._pulling.keys()

    def register_kv_caches(self, kv_caches: KVCaches) -> None:
        self.shutdown()  # of earlier caches: if there can't be another wire, there is none
        self._wire = self._make_wire(kv_caches)

    def shutdown(self) -> None:
        if self._wire is not None:
            self._wire.close()
            self._wire = None

    # -- a step --------------------------------------------------------------------------------

    def start_load_kv(self, forward_context: ForwardContext, **kwargs: Any) -> None:
        told = self._told()
        now = self.clock()
        for hold in told.holds:
            self._held[hold.request_id] = hold, now + self._options.hold_seconds
            self._request_of[hold.hold_id] = hold.request_id
            self.wire.serve(hold)
        for pull in told.pulls:
            self._pulling[pull.request_id] = _Pulling(pull, now, now + self._options.pull_seconds)
            self.wire.pull(pull)
        for source in told.declined:
            self.wire.decline(source)
        for request_id in told.revoked:
            if request_id in self._held:
                self._held[request_id] = self._held[request_id][0], now

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Loads are asynchronous: no step waits for one."""

    def save_kv_layer(self, layer_name: str, kv_layer: Tensor, attn_metadata: Any, **kwargs: Any) -> None:
        """Nothing to do: other engines read the blocks after the request has ended."""

    def wait_for_save(self) -> None:
        """Nothing to wait for: other engines read the blocks after the request has ended."""

    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        results = KVConnectorTransferResults()
        if self._told().is_idle and (self._held or self._pulling):
            self.wire.wait(IDLE_SECONDS)
        ended = self.wire.poll()
        if ended.pulled_bytes:
            self._stats.add(PULLED_BYTES, ended.pulled_bytes)
        for hold_id in ended.served:
            self._end_hold(hold_id, results, SERVED_HOLDS)
        for request_id in ended.pulled:
            pulled = self._end_pull(request_id, results)
            if pulled is not None:
                self._stats.add(PULL_SECONDS, [self.clock() - pulled.began])
        for request_id, reason in ended.failed:
            self._fail_pull(request_id, reason, results)
        self._end_what_is_late(results)
        return results

    def _end_what_is_late(self, results: KVConnectorTransferResults) -> None:
        now = self.clock()
        for hold, end in list(self._held.values()):
            if end <= now and self.wire.withdraw(hold.hold_id):
                self._tell_of_what_was_not_pulled(hold.request_id, now)
                self._end_hold(hold.hold_id, results, EXPIRED_HOLDS)
        for pull, _, end in list(self._pulling.values()):
            if end <= now and self.wire.give_up(pull.request_id):
                reason = f"no end within {self._options.pull_seconds} seconds"
                self._fail_pull(pull.request_id, reason, results)

    def _tell_of_what_was_not_pulled(self, request_id: str, now: float) -> None:
        if now < self._quiet_until:
            self._untold += 1
            return
        more = f", and so are those of {self._untold} before it" if self._untold else ""
        warn("request %s: its blocks were not pulled and are free again%s", request_id, more)
        self._untold, self._quiet_until = 0, now + QUIET_SECONDS

    def _end_hold(self, hold_id: str, results: KVConnectorTransferResults, counted: str) -> None:
        request_id = self._request_of.pop(hold_id, None)
        if request_id is not None:
            del self._held[request_id]
            results.finished_sending.add(request_id)
            self._stats.add(counted, 1)

    def _end_pull(self, request_id: str, results: KVConnectorTransferResults) -> _Pulling | None:
        pulling = self._pulling.pop(request_id, None)
        if pulling is not None:
            results.finished_recving.add(request_id)
        return pulling

    def _fail_pull(self, request_id: str, reason: str, results: KVConnectorTransferResults) -> None:
        pulling = self._end_pull(request_id, results)
        if pulling is None:
            return
        self._stats.add(FAILED_PULLS, 1)
        pull = pulling.pull
        place = place_of(pull.source.address.host, pull.source.address.port)
        # The reason is the other side's and may quote a client's text, so it is cut.
        warn("request %s: its KV did not come from %s: %.500s", request_id, place, reason)
        results.failed_recving.add(request_id)
        if not self._fails_requests:
            self._unfilled.update(pull.block_ids)
        self.wire.decline(pull.source)

    def get_block_ids_with_load_errors(self) -> set[int]:
        unfilled, self._unfilled = self._unfilled, set()
        return unfilled

    def get_kv_connector_stats(self) -> P2PStats | None:
        return self._stats.take()

    def _told(self) -> P2PMetadata:
        told = self._get_connector_metadata()
        if not isinstance(told, P2PMetadata):
            raise TypeError(f"connector metadata: expected P2PMetadata, got {type(told).__name__}")
        return told

    def check(self) -> None:
        """Recount: each hold has its request, and each request its hold."""
        holds = {hold.hold_id: request_id for request_id, (hold, _) in self._held.items()}
        assert holds == self._request_of, f"holds {holds}, requests of holds {self._request_of}"
