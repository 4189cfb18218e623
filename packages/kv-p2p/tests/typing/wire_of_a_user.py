"""Checked by mypy and pyright, never run: a connector over a transport of somebody else's."""

from typing import assert_type

import kv_p2p
from kv_api import ConfigError, KVCacheConfig, KVCaches, KVConnectorRole, SchedulerSide, VllmConfig, WorkerSide
from kv_p2p import P2PConnector, P2PSchedulerSide, P2PWorkerSide
from kv_p2p.pulling.metadata import Hold, P2PMetadata, Pull, Source
from kv_p2p.pulling.options import Options, parse_options
from kv_p2p.pulling.ticket import Address, Ticket, read_ticket
from kv_p2p.pulling.wire import Ended, Wire


class SharedMemory:
    """Fits `Wire` without being told so."""

    def __init__(self, options: Options, num_blocks: int) -> None:
        self.address: tuple[str, int] = options.host, options.port
        self.num_blocks = num_blocks
        self.holds: dict[str, Hold] = {}
        self.ended = Ended()

    def serve(self, hold: Hold) -> None:
        self.holds[hold.hold_id] = hold

    def withdraw(self, hold_id: str) -> bool:
        return self.holds.pop(hold_id, None) is not None

    def pull(self, pull: Pull) -> None:
        for part in pull.parts:
            assert_type(part.first, int)
            assert_type(part.block_ids, tuple[int, ...])
        assert_type(pull.block_ids, tuple[int, ...])
        assert_type(pull.source.address, Address)
        if max(pull.block_ids) < self.num_blocks:
            self.ended.pulled.append(pull.request_id)
        else:
            self.ended.failed.append((pull.request_id, "no such block"))

    def give_up(self, request_id: str) -> bool:
        return request_id not in self.ended.pulled

    def decline(self, source: Source) -> None:
        self.ended.served.append(source.hold_id)

    def poll(self) -> Ended:
        ended, self.ended = self.ended, Ended()
        return ended

    def wait(self, seconds: float) -> None:
        pass

    def close(self) -> None:
        self.holds.clear()


class SharedMemoryConnector(P2PConnector):
    def make_wire(
        self, kv_caches: KVCaches, options: Options, vllm_config: VllmConfig, kv_cache_config: KVCacheConfig | None
    ) -> Wire:
        if kv_cache_config is None:
            raise ConfigError("how many blocks are there?")
        return SharedMemory(options, kv_cache_config.num_blocks)


class PatientWorkerSide(P2PWorkerSide):
    clock = staticmethod(lambda: 0.0)


class PatientConnector(P2PConnector):
    worker_class = PatientWorkerSide


def use(vllm_config: VllmConfig, kv_cache_config: KVCacheConfig) -> float:
    connector = SharedMemoryConnector(vllm_config, KVConnectorRole.WORKER, kv_cache_config)
    assert_type(connector.side, SchedulerSide | WorkerSide)
    halves: tuple[type[SchedulerSide], type[WorkerSide]] = P2PSchedulerSide, P2PWorkerSide
    halves = connector.scheduler_class, PatientConnector.worker_class
    return parse_options(vllm_config).hold_seconds + len(halves)


def route(metadata: P2PMetadata, params: dict[str, object]) -> list[Ticket]:
    ticket = read_ticket(params)
    assert_type(ticket.num_tokens, int)
    return [ticket for hold in metadata.holds if hold.digest == ticket.digest]


def misspelt() -> object:
    assert_type(kv_p2p.SimpleBuffer(*kv_p2p.LocalPipe.pair(), 1e9), kv_p2p.SimpleBuffer)
    return kv_p2p.SimplePipe  # type: ignore[attr-defined]
