"""``ReplayP2PConnector``: kv-p2p's connector, whose pulls take the time that a model of the network gives them.

kv-p2p decides which blocks are held, which tickets are used, and when a hold or pull is given up. Only the
connection is replaced: by the engine's ``TimedWire`` (``wires``).
"""

from typing import Any

from kv_api import KVCacheConfig, KVCaches, VllmConfig
from kv_p2p import P2PConnector, P2PWorkerSide
from kv_p2p.pulling.options import Options
from kv_p2p.pulling.wire import Wire
from kv_sim.replay.timed.durations.timing import SECOND, Clock
from kv_sim.replay.timed.durations.wires import TimedWire


class ReplayP2PWorkerSide(P2PWorkerSide):
    """Uses the replay's clock."""

    def __init__(self, vllm_config: Any, *args: Any, **kwargs: Any) -> None:
        self._replay_clock: Clock = vllm_config.replay_clock
        super().__init__(vllm_config, *args, **kwargs)

    def _now(self) -> float:
        """Seconds since the trace began."""
        return self._replay_clock.now / SECOND

    clock = _now


class ReplayP2PConnector(P2PConnector):
    """Pulls over the network of a replay."""

    worker_class = ReplayP2PWorkerSide

    def make_wire(
        self, kv_caches: KVCaches, options: Options, vllm_config: VllmConfig, kv_cache_config: KVCacheConfig | None
    ) -> Wire:
        wire: TimedWire = vllm_config.replay_wire  # type: ignore[attr-defined]
        wire.set_patience(options)
        return wire
