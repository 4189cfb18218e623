"""``Books``: what one replay counts while it goes on, from the engine's side and from the connector's.

The engine's side knows requests and times, the link knows copies, and the connector tells its own counts, which
are taken from the answers that pass the guard. A digest covers every request's times and every copy, and when its
end was heard of.
"""

from array import array
from collections import Counter
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any, Final

from kv_api import CacheHitSource, KVConnectorStats
from kv_sim.replay.timed.engine.request import TracedRequest, output_tokens_of
from kv_sim.replay.timed.lanes import Ended
from kv_sim.replay.timed.settings import Sizes
from kv_sim.replay.timed.timing import Work
from kv_sim.replay.timed.wires import Pulling
from kv_sim.replay.trace import TraceRequest

REFUSALS: Final = "vllm:kv_offload_allocation_failure"
"""Stores for which the medium had no room. The connector offers them again, and counts steps until then."""
_LEVELS: Final = ("_perc", "_held_blocks")
"""How the names of metrics end that say how much there is of something now."""
EMPTY: Final = "has no prompt"
BEYOND_MODEL: Final = "is longer than the model's maximum"
BEYOND_GPU: Final = "is longer than all GPU blocks"


class Books:
    """What was counted so far in one replay."""

    def __init__(self, sizes: Sizes) -> None:
        self._sizes = sizes
        self.refused: Counter[str] = Counter()
        """Requests that the engine doesn't take, by reason."""
        self.num_steps = 0
        self.num_engine_steps = 0
        """Those that were not fused."""
        self.last_step_ns = 0
        """When the last token came. Whoever gets its last token is awake: a fused step has no part in it."""
        self.connector: Counter[str] = Counter()
        """What the connector counted, by metric."""
        self.prompt_tokens = self.prompt_blocks = self.full_blocks = self.output_tokens = 0
        self.local_tokens = self.external_tokens = self.disk_tokens = 0
        self.local_blocks = self.external_blocks = self.disk_blocks = 0
        self.preemptions = 0
        self.ttft, self.queued, self.latency = array("q"), array("q"), array("q")
        self.load_wait, self.per_token = array("q"), array("q")
        self._digest = blake2b(digest_size=16)

    @property
    def refusals(self) -> int:
        """Offers of stores that were refused."""
        return self.connector[REFUSALS]

    @property
    def digest(self) -> str:
        """Of all times of requests and of copies."""
        return self._digest.hexdigest()

    def admits(self, traced: TraceRequest) -> bool:
        """Whether the engine takes a request; if not, it is counted."""
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
        if times.external_tokens or times.load_wait:  # the latter alone: it loaded after it was preempted
            self.load_wait.append(times.load_wait)
        if request.num_output_tokens > 1:
            self.per_token.append((times.end - times.first_token) // (request.num_output_tokens - 1))
        self._write(request.index, request.num_output_tokens, request.num_preemptions, times)
        request.forget_blocks()

    def copy_ended(self, job: Ended, now: int) -> None:
        """The end of a copy was heard of."""
        self._write(job.port, job.job_id, job.direction.value, job.blocks, job.begin, job.end, job.success, now)

    def disk_ended(self, job: Ended, now: int) -> None:
        """What was read or written, and when it was heard of."""
        self._write("disk", job.port, job.job_id, job.direction.value, job.blocks, job.begin, job.end, now)

    def pull_ended(self, pulling: Pulling, now: int) -> None:
        """What was pulled, and when its end was heard of."""
        self._write("pull", pulling.pull.request_id, pulling.span, now)

    def called(self, side: str, method: str, args: tuple[Any, ...], answer: Any) -> None:
        """A call of the connector was answered."""
        if method == "get_external_cache_hit_sources":
            self._note_source(args[0], answer)
        if method == "get_kv_connector_stats" and isinstance(answer, KVConnectorStats):
            self._count(answer.reduce())

    def _note_source(self, request: TracedRequest, sources: Mapping[CacheHitSource, int]) -> None:
        """Like what was found, where it was found counts once, when a request is first scheduled."""
        if not request.source_is_known:
            request.source_is_known = True
            request.times.disk_tokens = min(request.times.external_tokens, sources.get(CacheHitSource.DISK, 0))

    def _count(self, numbers: Mapping[str, Any]) -> None:
        """Add up, over all children of a connector; not levels."""
        for name, value in numbers.items():
            if isinstance(value, Mapping):
                self._count(value)
            elif isinstance(value, int | float) and value and not name.endswith(_LEVELS):
                self.connector[name] += value  # type: ignore[assignment]

    def _write(self, *values: object) -> None:
        self._digest.update(repr(values).encode())
