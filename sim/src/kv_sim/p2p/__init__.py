"""kv-p2p's connector in a world in which engines serve each other, with the world's copies as its wire.

A world may have a single engine, which pulls from itself: one request's blocks are held, and another request pulls
them, as the router says (``history/router.py``). That tests as much, since neither half of the connector knows
which engine is at the other end. ``WorldP2PConnector`` is `P2PConnector` with the world's ``wire``, and a
``watch`` on its workers' reports.
"""

from typing import ClassVar

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
    wire_class: ClassVar[type[WorldWire]] = WorldWire

    def make_wire(
        self, kv_caches: KVCaches, options: Options, vllm_config: VllmConfig, kv_cache_config: KVCacheConfig | None
    ) -> Wire:
        return self.wire_class(next(iter(kv_caches.values())).device)
