"""A world in which engines serve each other: kv-p2p's connector, with its router, and with a world as its wire.

There is one engine, which pulls from itself: what a request leaves behind another one pulls. That is no loss,
since neither half knows who is at the other end. ``RoutedP2PConnector`` is `P2PConnector` with what stands between
two engines, a ``router``; a ``wire`` that is the world's; and a ``watch`` on what its workers report.
"""

from kv_api import KVCacheConfig, KVCaches, VllmConfig
from kv_p2p import P2PConnector
from kv_p2p.pulling.options import Options
from kv_p2p.pulling.wire import Wire
from kv_sim.p2p.router import RoutedSchedulerSide
from kv_sim.p2p.watch import TimedP2PWorkerSide
from kv_sim.p2p.wire import WorldWire

__all__ = ["RoutedP2PConnector", "RoutedSchedulerSide", "TimedP2PWorkerSide", "WorldWire"]


class RoutedP2PConnector(P2PConnector):
    """A producer, a consumer and the router between them."""

    scheduler_class = RoutedSchedulerSide
    worker_class = TimedP2PWorkerSide

    def make_wire(
        self, kv_caches: KVCaches, options: Options, vllm_config: VllmConfig, kv_cache_config: KVCacheConfig | None
    ) -> Wire:
        return WorldWire(next(iter(kv_caches.values())).device)
