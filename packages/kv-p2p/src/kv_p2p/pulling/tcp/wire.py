"""``TcpWire``: the wire over TCP, which is a server and a client."""

import threading
from contextlib import ExitStack

from kv_api import ConfigError, KVCacheConfig, KVCaches, VllmConfig
from kv_p2p.pulling.carrier import NIXL, TCP, Carrier
from kv_p2p.pulling.metadata import Hold, Pull, Source
from kv_p2p.pulling.options import Options
from kv_p2p.pulling.pages import WorkerPages
from kv_p2p.pulling.tcp.client import Client
from kv_p2p.pulling.tcp.holds import HoldTable
from kv_p2p.pulling.tcp.server import Server, slot_bytes
from kv_p2p.pulling.tcp.slots import SlotPool
from kv_p2p.pulling.wire import Ended


class TcpWire:
    """A ``kv_p2p.pulling.wire.Wire``. An engine that is only a consumer serves nothing, so it doesn't listen.

    Its carrier ends with it, also if it can't be made.
    """

    def __init__(
        self,
        pages: WorkerPages,
        rank: int,
        options: Options,
        carrier: Carrier | None = None,
        *,
        serves: bool = True,
        engine_id: str | None = None,
    ) -> None:
        self._carrier = carrier
        self._holds = HoldTable()
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._news = threading.Event()
        self.server: Server | None = None
        seconds = options.pull_seconds
        with ExitStack() as undo:
            if carrier is not None:
                undo.callback(carrier.close)
            self._slots = None if carrier is None else SlotPool(carrier, slot_bytes(pages))
            self._client = Client(rank, pages, self._lock, self._news.set, seconds, self._slots)
            if serves:
                address = options.listen_host or options.host, options.port + rank
                self.server = Server(
                    address, pages, self._holds, self._changed, self._news.set, seconds, self._slots, engine_id
                )
            undo.pop_all()

    @classmethod
    def of_worker(
        cls, kv_caches: KVCaches, options: Options, vllm_config: VllmConfig, kv_cache_config: KVCacheConfig | None
    ) -> "TcpWire":
        """The wire of a worker of an engine."""
        if kv_cache_config is None:
            raise ConfigError("P2PConnector was created without a kv_cache_config; its workers need one")
        pages = WorkerPages.of(kv_caches, kv_cache_config)
        transfer = vllm_config.kv_transfer_config
        serves = transfer is not None and transfer.is_kv_producer
        carrier = make_carrier(options, serves=serves)
        engine_id = transfer.engine_id if transfer is not None else None
        return cls(pages, vllm_config.parallel_config.rank, options, carrier, serves=serves, engine_id=engine_id)

    def serve(self, hold: Hold) -> None:
        """Let other workers pull the hold's blocks."""
        with self._changed:
            self._holds.serve(hold)
            self._changed.notify_all()

    def withdraw(self, hold_id: str) -> bool:
        """Stop serving a hold. False: its blocks are being read."""
        with self._lock:
            return self._holds.withdraw(hold_id)

    def pull(self, pull: Pull) -> None:
        """Begin to receive the blocks of a pull."""
        self._client.pull(pull)

    def give_up(self, request_id: str) -> bool:
        """Stop receiving the blocks of a pull. False: it is writing some now."""
        return self._client.give_up(request_id)

    def decline(self, source: Source) -> None:
        """Tell the hold's producer that it isn't wanted."""
        self._client.decline(source)

    def poll(self) -> Ended:
        """The holds and pulls that ended."""
        self._news.clear()
        with self._lock:
            ended = self._client.take_ended()
            ended.served = self._holds.take_served()
        return ended

    def wait(self, seconds: float) -> None:
        """Return when a hold or pull has ended since the last ``poll``, or after ``seconds``."""
        self._news.wait(seconds)

    def close(self) -> None:
        """End all threads."""
        self._client.close()
        if self.server is not None:
            self.server.close()
        if self._carrier is not None:
            self._carrier.close()

    def check(self) -> None:
        """Recount the holds."""
        with self._lock:
            self._holds.check()
        self._client.check()
        if self._slots is not None:
            self._slots.check()


def make_carrier(options: Options, *, serves: bool) -> Carrier | None:
    """The carrier that the settings name; None for ``tcp``. ``serves``: other workers read from it, too."""
    if options.carrier == TCP:
        return None
    if options.carrier == NIXL:
        from kv_p2p.pulling.nixl import NixlCarrier

        return NixlCarrier(options.nixl_backend, options.pull_seconds, serves=serves)
    from kv_p2p.pulling.mooncake import MooncakeCarrier

    return MooncakeCarrier(options.host, options.mooncake_protocol, options.mooncake_device)
