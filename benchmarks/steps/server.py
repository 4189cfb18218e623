"""vLLM's scheduler with made-up model output and no worker: every copy is reported as ended with the next step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from time import process_time

from kv_offload import metadata as ours
from kv_sim.config import WorldConfig

try:
    import torch
    import vllm
    from vllm.config import KVTransferConfig
    from vllm.distributed.kv_transfer.kv_connector.v1.offloading import common as theirs
    from vllm.sampling_params import SamplingParams
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, KVCacheTensor
    from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
    from vllm.v1.request import RequestStatus
    from vllm.v1.structured_output import StructuredOutputManager

    from kv_vllm.vllm_scheduler import make_request
    from kv_vllm.vllm_world import vllm_config
except ModuleNotFoundError as error:
    print(f"nothing is compared: {error}")
    raise SystemExit(0) from None

VLLM_VERSION: str = vllm.__version__
BLOCK_TOKENS = 16
REQUESTS = 256
LONG_PROMPT_TOKENS = 100_000
STEP_TOKENS = 2048
NUM_BLOCKS = 80_000
PAGE_BYTES = 2 * BLOCK_TOKENS * 4
CHUNKS = 60_000


class Server:
    """A scheduler with one of the connectors, and workers that are always done by the next step, or never."""

    def __init__(
        self, subject: str, *, prompt_only: bool = False, chunks: int = CHUNKS, ends: bool = True
    ) -> None:
        self._ends = ends
        self._meta = {"vllm": theirs, "ours": ours}.get(subject)
        self._ended: dict[int, int] = {}
        self._loaded: set[str] = set()
        world = WorldConfig(
            num_blocks=NUM_BLOCKS,
            block_size=BLOCK_TOKENS,
            max_running=REQUESTS,
            max_step_tokens=STEP_TOKENS,
        )
        config = vllm_config(world, None if subject == "none" else transfer(subject, prompt_only, chunks))
        config.kv_events_config = None
        config.model_config.max_model_len = 2 * LONG_PROMPT_TOKENS
        config.scheduler_config.max_model_len = 2 * LONG_PROMPT_TOKENS
        spec = FullAttentionSpec(block_size=BLOCK_TOKENS, num_kv_heads=1, head_size=1, dtype=torch.float32)
        cache = KVCacheConfig(
            num_blocks=NUM_BLOCKS,
            kv_cache_tensors=[
                KVCacheTensor(PAGE_BYTES * NUM_BLOCKS, ["layer"], PAGE_BYTES * NUM_BLOCKS, PAGE_BYTES)
            ],
            kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)],
        )
        self.scheduler = Scheduler(
            vllm_config=config,
            kv_cache_config=cache,
            block_size=BLOCK_TOKENS,
            hash_block_size=BLOCK_TOKENS,
            log_stats=True,
            structured_output_manager=StructuredOutputManager(config),
        )

    def add(self, name: str, tokens: list[int]) -> float:
        """A request arrives; its blocks are hashed before the clock runs. Returns the seconds that it took."""
        request = make_request(name, tokens, SamplingParams(max_tokens=1 << 20, ignore_eos=True), BLOCK_TOKENS)
        begin = process_time()
        self.scheduler.add_request(request)
        return process_time() - begin

    def step(self) -> float:
        """One step; returns the seconds that the scheduler took."""
        begin = process_time()
        output = self.scheduler.schedule()
        seconds = process_time() - begin
        names = list(output.num_scheduled_tokens)
        sampled = [[7] if self._is_sampling(name) else [] for name in names]
        result = ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: index for index, name in enumerate(names)},
            sampled_token_ids=sampled,
            kv_connector_output=self._report(),
        )
        if self._meta is not None and self._ends:
            planned = output.kv_connector_metadata
            self._ended = dict.fromkeys([*planned.load_jobs, *planned.store_jobs], 1)
            self._loaded = {job.req_id for job in planned.load_jobs.values()}
        begin = process_time()
        self.scheduler.update_from_output(output, result)
        return seconds + process_time() - begin

    def first_token_of(self, name: str) -> Iterator[float]:
        """Step until a request has sampled one; yields each step's seconds."""
        while not self.scheduler.requests[name].num_output_tokens:
            yield self.step()

    def finish(self, names: Sequence[str]) -> float:
        """Requests end. Returns the seconds that it took."""
        begin = process_time()
        self.scheduler.finish_requests(names, RequestStatus.FINISHED_ABORTED)
        return process_time() - begin

    def _is_sampling(self, name: str) -> bool:
        request = self.scheduler.requests[name]
        return bool(request.num_computed_tokens >= request.num_tokens)

    def _report(self) -> KVConnectorOutput | None:
        if self._meta is None or not self._ended:
            return None
        meta = self._meta.OffloadingWorkerMetadata(self._ended)
        return KVConnectorOutput(kv_connector_worker_meta=meta, finished_recving=self._loaded)


def transfer(subject: str, prompt_only: bool, chunks: int) -> KVTransferConfig:
    """The same settings for both."""
    return KVTransferConfig(
        kv_connector="OffloadingConnector",
        kv_role="kv_both",
        kv_connector_module_path="kv_vllm" if subject == "ours" else None,
        kv_connector_extra_config={
            "cpu_bytes_to_use": 4096 * chunks,
            "block_size": BLOCK_TOKENS,
            "offload_prompt_only": prompt_only,
        },
    )
