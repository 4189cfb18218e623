"""Two requests through the real connector pair, the real worker and real host memory, without any engine.

The first request computes its prompt into some blocks; the second, with the same prompt, gets it back into others.
Every byte is compared, on numpy and on torch.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from kv_api import AttentionKind, KVConnectorOutput, KVConnectorRole, KVOutputAggregator, KVTransferConfig
from kv_factory import KVConnectorFactory

BLOCK, BLOCKS, PROMPT = 4, 24, 23
LAYERS = {"layers.0": (2, BLOCK, 3), "layers.1": (2, BLOCK, 3), "layers.2": (1, BLOCK, 5)}
"""Layer -> the shape of one of its blocks."""
STRIDE = 80
"""Bytes of a block that has all layers, and padding between them."""
PATIENCE = 30_000
"""Steps of a millisecond or more until something has gone wrong."""
HASHES = [bytes([index]) * 32 for index in range(PROMPT // BLOCK)]


@dataclass
class Request:
    """Fits ``kv_api.Request``."""

    request_id: str
    num_computed_tokens: int = 0
    num_tokens: int = PROMPT
    num_prompt_tokens: int = PROMPT
    all_token_ids: list[int] = field(default_factory=lambda: list(range(PROMPT)))
    block_hashes: list[bytes] = field(default_factory=lambda: list(HASHES))
    cache_salt: None = None
    lora_request: None = None
    kv_transfer_params: None = None


def numpy_caches() -> dict[str, Any]:
    random = np.random.default_rng(0)
    return {name: random.integers(0, 255, (BLOCKS, *shape), dtype=np.uint8) for name, shape in LAYERS.items()}


def torch_caches() -> dict[str, Any]:
    torch = import_module("torch")
    return {name: torch.from_numpy(array).view(torch.uint8) for name, array in numpy_caches().items()}


def packed(caches: dict[str, Any]) -> dict[str, Any]:
    """The same with all layers of a block together, as where pages are of several sizes."""
    whole: Any = np.full(BLOCKS * STRIDE, 99, np.uint8)
    if not isinstance(caches["layers.0"], np.ndarray):
        whole = import_module("torch").from_numpy(whole)
    made, begin = {}, 1
    for name, cache in reversed(caches.items()):
        _, tokens, width = LAYERS[name]
        strides = (STRIDE, tokens * width, width, 1)
        if isinstance(whole, np.ndarray):
            made[name] = np.ndarray(cache.shape, np.uint8, whole.data, begin, strides)
        else:
            made[name] = whole.as_strided(cache.shape, strides, begin)
        made[name][:] = cache
        begin += cache[0].nbytes + 2
    return {name: made[name] for name in caches}


def block_bytes(caches: dict[str, Any], block: int) -> list[bytes]:
    return [np.asarray(layer[block]).tobytes() for layer in caches.values()]


class Pair:
    """Both sides of the connector on one rank, and the calls of an engine's step."""

    def __init__(self, caches: dict[str, Any], extra: dict[str, Any]) -> None:
        apart = {np.asarray(layer).strides[0] for layer in caches.values()}
        page = STRIDE if apart == {STRIDE} else sum(layer[0].nbytes for layer in caches.values())
        config: Any = SimpleNamespace(
            kv_transfer_config=KVTransferConfig(
                kv_connector="OffloadingConnector",
                kv_role="kv_both",
                kv_connector_extra_config={"cpu_bytes_to_use": 1 << 20, **extra},
            ),
            cache_config=SimpleNamespace(block_size=BLOCK, enable_prefix_caching=True),
            parallel_config=SimpleNamespace(
                tensor_parallel_size=1, pipeline_parallel_size=1, world_size=1, rank=0
            ),
            scheduler_config=SimpleNamespace(disable_hybrid_kv_cache_manager=True),
        )
        of_layer = -(-page // len(caches))  # on average
        spec = SimpleNamespace(kind=AttentionKind.FULL, block_size=BLOCK, page_size_bytes=of_layer)
        cache_config: Any = SimpleNamespace(
            num_blocks=BLOCKS,
            kv_cache_groups=[SimpleNamespace(layer_names=list(caches), kv_cache_spec=spec)],
            kv_cache_tensors=[SimpleNamespace(size=BLOCKS * page, shared_by=list(caches))],
        )
        create = KVConnectorFactory.create_connector
        self.worker = create(config, KVConnectorRole.WORKER, cache_config)
        self.scheduler = create(config, KVConnectorRole.SCHEDULER, cache_config)
        self.worker.register_kv_caches(caches)
        self.aggregator = KVOutputAggregator.from_connector(self.scheduler, 1)

    def step(
        self,
        new: tuple[Request, list[int], int] | None = None,
        finished: Request | None = None,
        compute: Any = lambda: None,
    ) -> KVConnectorOutput:
        """A step from its plan to its report. ``new``: a request, its blocks, how many of its tokens it has."""
        scheduled = []
        if new is not None:
            request, blocks, computed = new
            scheduled = [
                SimpleNamespace(
                    req_id=request.request_id,
                    prompt_token_ids=request.all_token_ids,
                    block_ids=(blocks,),
                    num_computed_tokens=computed,
                )
            ]
        output: Any = SimpleNamespace(
            scheduled_new_reqs=scheduled,
            scheduled_cached_reqs=SimpleNamespace(
                req_ids=[], resumed_req_ids=set(), new_block_ids=[], num_computed_tokens=[], num_output_tokens=[]
            ),
            num_scheduled_tokens={new.req_id: PROMPT - new.num_computed_tokens for new in scheduled},
            total_num_scheduled_tokens=sum(PROMPT - new.num_computed_tokens for new in scheduled),
            scheduled_spec_decode_tokens={},
            finished_req_ids={finished.request_id} if finished else set(),
            preempted_req_ids=set(),
            has_sync_kv_loads=False,
            kv_cache_block_copies=None,
        )
        meta = self.scheduler.build_connector_meta(output)
        worker = self.worker
        worker.handle_preemptions(meta)
        worker.bind_connector_metadata(meta)
        compute()
        worker.start_load_kv(SimpleNamespace(no_compile_layers={}))
        worker.wait_for_save()
        results = worker.get_transfer_results(output.finished_req_ids)
        report = KVConnectorOutput(
            finished_sending=results.finished_sending or None,
            finished_recving=results.finished_recving or None,
            failed_recving=set(results.failed_recving),
            invalid_block_ids=worker.get_block_ids_with_load_errors(),
            kv_connector_worker_meta=worker.build_connector_worker_meta(),
        )
        worker.clear_connector_metadata()
        report = self.aggregator.aggregate_reports([report])
        self.scheduler.update_connector_output(report)
        return report

    def store(self, request: Request, blocks: list[int]) -> None:
        """Let a request compute its prompt into ``blocks``, end, and be stored."""
        self.scheduler.on_new_request(request)
        assert self.scheduler.get_num_new_matched_tokens(request, 0) == (0, False)
        self.scheduler.update_state_after_alloc(request, blocks_of(blocks), 0)
        self.step((request, blocks, 0))
        request.num_computed_tokens, request.num_tokens = PROMPT, PROMPT + 1
        hold, _ = self.scheduler.request_finished(request, blocks)
        report = self.step(finished=request)
        for _ in range(PATIENCE):
            hold = hold and request.request_id not in (report.finished_sending or ())
            if not hold and not self.scheduler.has_pending_push_work():
                return
            time.sleep(0.001)  # a thread copies meanwhile
            report = self.step()
        raise AssertionError("the store never ends")

    def load(self, request: Request, blocks: list[int], local: int) -> tuple[int, KVConnectorOutput]:
        """Let a request that has ``local`` tokens match, and load what it finds into the rest of ``blocks``."""
        self.scheduler.on_new_request(request)
        tokens, is_async = self.scheduler.get_num_new_matched_tokens(request, local)
        assert tokens
        assert is_async
        self.scheduler.update_state_after_alloc(request, blocks_of(blocks), tokens)
        for _ in range(PATIENCE):
            report = self.step()
            if request.request_id in (report.finished_recving or ()):
                return tokens, report
            time.sleep(0.001)
        raise AssertionError("the load never ends")


def blocks_of(blocks: list[int]) -> Any:
    return SimpleNamespace(get_block_ids=lambda: (list(blocks),))


@pytest.fixture(params=["by layer", "by block"])
def memory(request: pytest.FixtureRequest) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return packed if request.param == "by block" else dict


@pytest.fixture(params=["numpy", pytest.param("torch", marks=pytest.mark.torch)])
def caches(request: pytest.FixtureRequest, memory: Callable[[dict[str, Any]], dict[str, Any]]) -> dict[str, Any]:
    return memory(numpy_caches() if request.param == "numpy" else torch_caches())


@pytest.fixture(
    params=[
        {},
        {"blocks_per_chunk": 2},
        {"blocks_per_chunk": 3, "checksum": True, "eviction_policy": "s3fifo"},
        {"hold_blocks": "always"},
        {"hold_blocks": "never", "offload_prompt_only": False},
    ],
    ids=["plain", "chunks", "checksums", "held", "fenced"],
)
def pair(request: pytest.FixtureRequest, caches: dict[str, Any]) -> Iterator[Pair]:
    made = Pair(caches, request.param)
    made.factor = request.param.get("blocks_per_chunk", 1)  # type: ignore[attr-defined]
    yield made
    made.worker.shutdown()
    made.scheduler.shutdown()


@pytest.mark.parametrize("own", [0, 1, 2], ids=lambda own: f"has {own} blocks")
def test_what_one_request_computed_another_gets_back(pair: Any, caches: dict[str, Any], own: int) -> None:
    source, target = [3, 9, 4, 17, 5, 6], [20, 1, 2, 8, 7, 10]
    stored = [block_bytes(caches, block) for block in source]
    pair.store(Request("first"), source)
    for block in source:  # they belong to somebody else now
        for layer in caches.values():
            layer[block] = 0
    before = [block_bytes(caches, block) for block in range(BLOCKS)]
    tokens, report = pair.load(Request("second"), target, own * BLOCK)
    whole = PROMPT // BLOCK // pair.factor * pair.factor
    assert tokens == (whole - own) * BLOCK
    assert report.failed_recving == report.invalid_block_ids == set()
    for index, block in enumerate(target):
        expected = stored[index] if own <= index < whole else before[block]
        assert block_bytes(caches, block) == expected, f"block {index}"
    untouched = set(range(BLOCKS)) - set(target)
    assert all(block_bytes(caches, block) == before[block] for block in untouched)
    pair.scheduler.side.check()
    pair.worker.side.check()


def test_a_byte_that_changed_in_host_memory_is_a_miss_and_a_metric(caches: dict[str, Any]) -> None:
    pair = Pair(caches, {"checksum": True})
    source, target = [3, 9, 4, 17, 5, 6], [20, 1, 2, 8, 7, 10]
    pair.store(Request("first"), source)
    pair.worker.side.medium_worker._memory.bytes[0] ^= 1  # of the first chunk
    before = [block_bytes(caches, block) for block in range(BLOCKS)]
    second = Request("second")
    _, report = pair.load(second, target, 0)
    assert report.invalid_block_ids == set(target[:5])
    assert [block_bytes(caches, block) for block in range(BLOCKS)] == before
    counted = pair.scheduler.get_kv_connector_stats().to_dict()["data"]
    assert counted["vllm:kv_offload_cpu_checksum_mismatches"] == {(): 1}
    assert counted["vllm:kv_offload_load_failure"] == {(): 1}
    assert pair.scheduler.get_num_new_matched_tokens(Request("third"), 0) == (0, False)
    pair.worker.shutdown()
    pair.scheduler.shutdown()


def test_layers_of_a_block_that_lie_together_are_copied_as_one(caches: dict[str, Any]) -> None:
    pair = Pair(caches, {})
    apart = {np.asarray(layer).strides[0] for layer in caches.values()}
    ranges = pair.worker.side.medium_worker.engine._plan.num_ranges_a_page
    assert ranges == (1 if apart == {STRIDE} else len(LAYERS))
    pair.worker.shutdown()
    pair.scheduler.shutdown()


def test_another_prompt_finds_nothing(pair: Any) -> None:
    pair.store(Request("first"), [3, 9, 4, 17, 5, 6])
    other = Request("other", block_hashes=[bytes([99 - index]) * 32 for index in range(PROMPT // BLOCK)])
    pair.scheduler.on_new_request(other)
    assert pair.scheduler.get_num_new_matched_tokens(other, 0) == (0, False)
