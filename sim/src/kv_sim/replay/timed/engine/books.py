"""``Books``: the counts of one replay, from the engine, the link and the connector.

The engine reports requests and times, the link reports copies, and the connector's statistics are read from its
answers as they pass the guard. A digest covers every request's times, every copy, and the time at which the
copy's end was reported.
"""

from array import array
from collections import Counter
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any, Final

from kv_api import CacheHitSource, KVConnectorStats
from kv_sim.replay.timed.durations.lanes import Ended
from kv_sim.replay.timed.durations.timing import Work
from kv_sim.replay.timed.durations.wires import Pulling
from kv_sim.replay.timed.engine.request import TracedRequest, output_tokens_of
from kv_sim.replay.timed.server.sizes import Sizes
from kv_sim.replay.trace import TraceRequest

REFUSALS: Final = "vllm:kv_offload_allocation_failure"
"""Stores for which the medium had no room. The connector counts steps, and then offers them again."""
_LEVELS: Final = ("_perc", "_held_blocks")
"""Endings of the names of gauges, which can't be added up."""
EMPTY: Final = "has no prompt"
BEYOND_MODEL: Final = "is longer than the model's maximum"
BEYOND_GPU: Final = "is longer than all GPU blocks"


class Books:
    """The counts of one replay so far."""

    def __init__(self, sizes: Sizes) -> None:
        self._sizes = sizes
        self.refused: Counter[str] = Counter()
        """How many requests the engine refused, by reason."""
        self.num_steps = 0
        self.num_engine_steps = 0
        """Steps that were taken one by one, not fused."""
        self.last_step_ns = 0
        """The time of the last token. A request is awake for its last token, so a fused step never produces it."""
        self.connector: Counter[str] = Counter()
        """The connector's own counters, by metric."""
        self.prompt_tokens = self.prompt_blocks = self.full_blocks = self.output_tokens = 0
        self.local_tokens = self.external_tokens = self.disk_tokens = 0
        self.local_blocks = self.external_blocks = self.disk_blocks = 0
        self.preemptions = 0
        self.ttft, self.queued, self.latency = array("q"), array("q"), array("q")
        self.load_wait, self.per_token = array("q"), array("q")
        self._digest = blake2b(digest_size=16)

    @property
    def refusals(self) -> int:
        """How many stores the medium refused."""
        return self.connector[REFUSALS]

    @property
    def digest(self) -> str:
        """The digest of all times of requests and copies."""
        return self._digest.hexdigest()

    def admits(self, traced: TraceRequest) -> bool:
        """Whether the engine accepts a request; if not, count the refusal."""
        total = traced.input_tokens + output_tokens_of(traced)
        reason = ""
        if traced.input_tokens < 1:
            reason = EMPTY
        elif total > self._sizes.max_model_len:
            reason = BEYOND_MODEL
        elif total > self._sizes.gpu_blocks * self._sizes.block_tokens:
            reason = BEYOND_GPU
        if reason:
            self.refused[reason] += 1
            return False
        return True

    # -- what happens --------------------------------------------------------------------------

    def take_step(self, work: Work, now: int) -> None:
        """The engine took a step."""
        self.num_steps += 1
        self.num_engine_steps += 1
        if work.tokens:
            self.last_step_ns = now

    def end(self, request: TracedRequest) -> None:
        """A request ended."""
        times, size = request.times, self._sizes.block_tokens
        self.prompt_tokens += request.num_prompt_tokens
        self.prompt_blocks += -(-request.num_prompt_tokens // size)
        self.full_blocks += request.num_prompt_tokens // size
        self.output_tokens += request.num_output_tokens
        self.local_tokens += times.local_tokens
        self.external_tokens += times.external_tokens
        found = times.local_tokens + times.external_tokens
        external_blocks = -(-found // size) - times.local_tokens // size
        self.local_blocks += times.local_tokens // size
        self.external_blocks += external_blocks
        if times.disk_tokens > 0:
            self.disk_tokens += times.disk_tokens
            self.disk_blocks += external_blocks
        self.preemptions += request.num_preemptions
        self.ttft.append(times.first_token - times.arrival)
        self.queued.append(times.scheduled - times.arrival - times.served_before)
        self.latency.append(times.end - times.arrival)
        if times.external_tokens or times.load_wait:  # load_wait alone: it loaded after a preemption
            self.load_wait.append(times.load_wait)
        if request.num_output_tokens > 1:
            self.per_token.append((times.end - times.first_token) // (request.num_output_tokens - 1))
        self._write(request.index, request.num_output_tokens, request.num_preemptions, times)
        request.forget_blocks()

    def copy_ended(self, job: Ended, now: int) -> None:
        """A worker was told that a copy over the link ended."""
        self._write(job.port, job.job_id, job.direction.value, job.blocks, job.begin, job.end, job.success, now)

    def disk_ended(self, job: Ended, now: int) -> None:
        """A worker was told that a read or write of the disk ended."""
        self._write("disk", job.port, job.job_id, job.direction.value, job.blocks, job.begin, job.end, now)

    def pull_ended(self, pulling: Pulling, now: int) -> None:
        """A worker was told that a pull ended."""
        self._write("pull", pulling.pull.request_id, pulling.span, now)

    def called(self, side: str, method: str, args: tuple[Any, ...], answer: Any) -> None:
        """A call of the connector was answered."""
        if method == "get_external_cache_hit_sources":
            self._note_source(args[0], answer)
        if method == "get_kv_connector_stats" and isinstance(answer, KVConnectorStats):
            self._count(answer.reduce())

    def _note_source(self, request: TracedRequest, sources: Mapping[CacheHitSource, int]) -> None:
        """Note the source of a request's hits, once, when it is first scheduled, like the hits themselves."""
        if not request.source_is_known:
            request.source_is_known = True
            request.times.disk_tokens = min(request.times.external_tokens, sources.get(CacheHitSource.DISK, 0))

    def _count(self, numbers: Mapping[str, Any]) -> None:
        """Add up counters over all children of a connector; gauges are left out."""
        for name, value in numbers.items():
            if isinstance(value, Mapping):
                self._count(value)
            elif isinstance(value, int | float) and value and not name.endswith(_LEVELS):
                self.connector[name] += value  # type: ignore[assignment]

    def _write(self, *values: object) -> None:
        self._digest.update(repr(values).encode())
