"""kv-p2p's connector in a world in which engines serve each other, with that world as its wire.

There is one engine, which pulls from itself: what a request leaves behind another one pulls, as a router wants it
(``history/router.py``). That is no loss, since neither half knows who is at the other end. ``WorldP2PConnector``
is `P2PConnector` with a ``wire`` that is the world's, and a ``watch`` on what its workers report.
"""

from kv_api import KVCacheConfig, KVCaches, VllmConfig
from kv_p2p import P2PConnector
from kv_p2p.pulling.options import Options
from kv_p2p.pulling.wire import Wire
from kv_sim.p2p.watch import TimedP2PWorkerSide
from kv_sim.p2p.wire import WorldWire

__all__ = ["TimedP2PWorkerSide", "WorldP2PConnector", "WorldWire"]


class WorldP2PConnector(P2PConnector):
    """A producer and a consumer."""

    worker_class = TimedP2PWorkerSide

    def make_wire(
        self, kv_caches: KVCaches, options: Options, vllm_config: VllmConfig, kv_cache_config: KVCacheConfig | None
    ) -> Wire:
        return WorldWire(next(iter(kv_caches.values())).device)
