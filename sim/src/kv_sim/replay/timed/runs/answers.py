"""``Answers``: the figures of one replay, in seconds, bytes and tokens.

With several servers they cover all requests, and all copies and steps together.
"""

from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import chain

from kv_sim.replay.timed.durations.link import Traffic
from kv_sim.replay.timed.durations.timing import SECOND
from kv_sim.replay.timed.runs.finished import Finished


@dataclass(frozen=True)
class Spread:
    """The distribution of a duration over requests, in seconds; all 0 if there were none."""

    count: int
    mean: float
    p50: float
    p90: float
    p95: float
    p99: float
    worst: float

    @classmethod
    def of(cls, values: "array[int]") -> "Spread":
        """Make it of nanoseconds.

        Percentile p is the smallest value that at least p percent of them don't exceed.
        """
        if not values:
            return cls(0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
        ordered = sorted(values)

        def rank(share: int) -> float:
            return ordered[-(-share * len(ordered) // 100) - 1] / SECOND

        mean = sum(ordered) / len(ordered) / SECOND
        return cls(len(ordered), mean, rank(50), rank(90), rank(95), rank(99), ordered[-1] / SECOND)


@dataclass(frozen=True)
class Copies:
    """The copies over the link, over the network, or to or from the disk, in one direction."""

    jobs: int
    blocks: int
    bytes: int
    busy_seconds: float


@dataclass(frozen=True)
class Pulled:
    """What the decoding servers pulled from the prefilling servers."""

    tokens: int
    kept_tokens: int
    """Found in the decoding server's own GPU blocks, and so not pulled."""
    copies: Copies
    wait: Spread
    """Over requests that pulled: from the plan of the pull until the request runs."""


@dataclass(frozen=True)
class Answers:
    """The figures of one replay, over all requests that the engines accepted, on all servers."""

    requests: int
    refused: Mapping[str, int]
    """How many requests the engine refused, by reason."""
    prompt_tokens: int
    prompt_blocks: int
    full_prompt_blocks: int
    output_tokens: int
    gpu_hit_tokens: int
    """Found in GPU blocks when a request was first scheduled."""
    cpu_hit_tokens: int
    """Found by the connector beyond those, except in files."""
    disk_hit_tokens: int
    """Found by the connector in files. A prompt is loaded from one medium only."""
    gpu_hit_blocks: int
    cpu_hit_blocks: int
    """May include a last block of which all tokens but the last are used."""
    disk_hit_blocks: int
    block_tokens: int
    seconds: float
    """From the first arrival to the last token on any server."""
    ttft: Spread
    """From arrival to the first token."""
    time_per_output_token: Spread
    """Between a request's first token and its last; requests of one token have none."""
    latency: Spread
    """From arrival to the last token."""
    queueing: Spread
    """From arrival until the scheduler plans the request's first step or load."""
    load_wait: Spread
    """Over requests that loaded: from the plan of each load until the request runs."""
    preemptions: int
    loads: Copies
    stores: Copies
    disk_reads: Copies
    disk_writes: Copies
    host_wait_seconds: float
    """How long the host waited for copies in the middle of steps."""
    steps: int
    fused_steps: int
    connector: Mapping[str, int | float]
    """The connector's own statistics."""
    digest: str
    """A digest of all times of requests and copies; with several servers, of their digests."""
    pulled: Pulled | None = None
    """None: no server prefills for other servers."""

    @property
    def gpu_block_ratio(self) -> float:
        """The share of prompt blocks found on the GPU; partial blocks count."""
        return _ratio(self.gpu_hit_blocks, self.prompt_blocks)

    @property
    def cpu_block_ratio(self) -> float:
        """The share of prompt blocks that the connector found, except in files."""
        return _ratio(self.cpu_hit_blocks, self.prompt_blocks)

    @property
    def gpu_token_ratio(self) -> float:
        """The share of prompt tokens found on the GPU."""
        return _ratio(self.gpu_hit_tokens, self.prompt_tokens)

    @property
    def cpu_token_ratio(self) -> float:
        """The share of prompt tokens that the connector found, except in files."""
        return _ratio(self.cpu_hit_tokens, self.prompt_tokens)

    @property
    def disk_block_ratio(self) -> float:
        """The share of prompt blocks that the connector found in files."""
        return _ratio(self.disk_hit_blocks, self.prompt_blocks)

    @property
    def disk_token_ratio(self) -> float:
        """The share of prompt tokens that the connector found in files."""
        return _ratio(self.disk_hit_tokens, self.prompt_tokens)

    @property
    def pulled_token_ratio(self) -> float:
        """The share of prompt tokens that decoding servers pulled."""
        return _ratio(self.pulled.tokens if self.pulled else 0, self.prompt_tokens)

    @property
    def kept_token_ratio(self) -> float:
        """The share of prompt tokens that decoding servers found in their own GPU blocks."""
        return _ratio(self.pulled.kept_tokens if self.pulled else 0, self.prompt_tokens)

    @property
    def output_tokens_per_second(self) -> float:
        """Output tokens a second, over the whole replay."""
        return self.output_tokens / self.seconds if self.seconds else 0.0

    @property
    def tokens_per_second(self) -> float:
        """Tokens a second of prompts (found or computed) and outputs."""
        return (self.prompt_tokens + self.output_tokens) / self.seconds if self.seconds else 0.0


def not_replayed(refused: Mapping[str, int]) -> Iterator[str]:
    """How many requests the engine refused, a phrase for each reason."""
    for reason, count in refused.items():
        yield f"1 request, which {reason}" if count == 1 else f"{count:,} requests, each of which {reason}"


def answers_of(*runs: Finished) -> Answers:
    """The figures of finished replays, one for each server."""

    def total(name: str) -> int:
        return sum(run.counts[name] for run in runs)

    def spread(name: str) -> Spread:
        return Spread.of(array("q", chain.from_iterable(run.durations[name] for run in runs)))

    def copies(name: str) -> Copies:
        return _copies([run.moved[name] for run in runs], runs[0].block_bytes)

    return Answers(
        requests=sum(len(run.durations["ttft"]) for run in runs),
        refused=_together([run.refused for run in runs]),
        prompt_tokens=total("prompt_tokens"),
        prompt_blocks=total("prompt_blocks"),
        full_prompt_blocks=total("full_blocks"),
        output_tokens=total("output_tokens"),
        gpu_hit_tokens=total("local_tokens"),
        cpu_hit_tokens=total("external_tokens") - total("disk_tokens"),
        disk_hit_tokens=total("disk_tokens"),
        gpu_hit_blocks=total("local_blocks"),
        cpu_hit_blocks=total("external_blocks") - total("disk_blocks"),
        disk_hit_blocks=total("disk_blocks"),
        block_tokens=runs[0].block_tokens,
        seconds=max(run.last_step_ns for run in runs) / SECOND,
        ttft=spread("ttft"),
        time_per_output_token=spread("per_token"),
        latency=spread("latency"),
        queueing=spread("queued"),
        load_wait=spread("load_wait"),
        preemptions=total("preemptions"),
        loads=copies("loads"),
        stores=copies("stores"),
        disk_reads=copies("disk_reads"),
        disk_writes=copies("disk_writes"),
        host_wait_seconds=sum(run.waited_ns for run in runs) / SECOND,
        steps=total("num_steps"),
        fused_steps=total("num_steps") - total("num_engine_steps"),
        connector=_together([run.connector for run in runs]),
        digest=_digest([run.digest for run in runs]),
        pulled=_pulled([run for run in runs if run.is_of_outputs]),
    )


def _pulled(runs: Sequence[Finished]) -> Pulled | None:
    if not runs:
        return None
    return Pulled(
        tokens=sum(run.counts["pulled_tokens"] for run in runs),
        kept_tokens=sum(run.counts["kept_tokens"] for run in runs),
        copies=_copies([run.moved["pulls"] for run in runs], runs[0].block_bytes),
        wait=Spread.of(array("q", chain.from_iterable(run.durations["pull_wait"] for run in runs))),
    )


def _together(counts: Sequence[Mapping[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for one in counts:
        total.update(one)
    return dict(sorted(total.items()))


def _digest(digests: Sequence[str]) -> str:
    first, *more = digests
    return blake2b("".join(digests).encode(), digest_size=16).hexdigest() if more else first


def _copies(traffic: Sequence[Traffic], block_bytes: int) -> Copies:
    blocks = sum(one.blocks for one in traffic)
    busy_seconds = sum(one.busy_ns for one in traffic) / SECOND
    return Copies(sum(one.jobs for one in traffic), blocks, blocks * block_bytes, busy_seconds)


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
