"""``Finished``: the raw results of a replay on one server, in plain values that can come from another process."""

from array import array
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from kv_api import Direction
from kv_sim.replay.timed.durations.link import Traffic
from kv_sim.replay.timed.engine.books import Books
from kv_sim.replay.timed.engine.engine import TimedEngine

_OF_PROMPTS: Final = (
    *("prompt_tokens", "prompt_blocks", "full_blocks"),
    *("local_tokens", "external_tokens", "disk_tokens", "local_blocks", "external_blocks", "disk_blocks"),
)
"""The counts that are about prompts."""
_COUNTS: Final = (*_OF_PROMPTS, "output_tokens", "preemptions", "num_steps", "num_engine_steps")
_DURATIONS: Final = ("ttft", "queued", "latency", "load_wait", "per_token")


@dataclass(frozen=True)
class Finished:
    """The results of one server when all its requests have ended. Durations are nanoseconds."""

    block_tokens: int
    block_bytes: int
    counts: Mapping[str, int]
    durations: Mapping[str, "array[int]"]
    refused: Mapping[str, int]
    connector: Mapping[str, int]
    moved: Mapping[str, Traffic]
    """``loads`` and ``stores`` over the link, ``disk_reads`` and ``disk_writes``, ``pulls``."""
    last_step_ns: int
    waited_ns: int
    digest: str

    @property
    def is_of_outputs(self) -> bool:
        """Whether it is a decoding server, for which others prefill."""
        return "pull_wait" in self.durations

    def of_prompts(self) -> "Finished":
        """The results that count for a prefilling server. How long requests took, the decoding servers report."""
        durations = {name: array("q") for name in self.durations} | {"load_wait": self.durations["load_wait"]}
        return replace(self, counts={**self.counts, "output_tokens": 0}, durations=durations)

    def of_outputs(self) -> "Finished":
        """The results that count for a decoding server, whose prompt tokens were pulled, or kept on its GPU."""
        counts = {**self.counts, **dict.fromkeys(_OF_PROMPTS, 0)}
        counts |= {"pulled_tokens": self.counts["external_tokens"], "kept_tokens": self.counts["local_tokens"]}
        durations = {**self.durations, "load_wait": array("q"), "pull_wait": self.durations["load_wait"]}
        return replace(self, counts=counts, durations=durations, refused={})


def finished_of(engine: TimedEngine, books: Books) -> Finished:
    """The results of a replay that has ended."""
    link, disk = engine.link.traffic, engine.disk.traffic
    return Finished(
        block_tokens=engine.sizes.block_tokens,
        block_bytes=engine.sizes.block_bytes,
        counts={name: getattr(books, name) for name in _COUNTS},
        durations={name: getattr(books, name) for name in _DURATIONS},
        refused=dict(books.refused),
        connector=dict(books.connector),
        moved={
            "loads": link[Direction.LOAD],
            "stores": link[Direction.STORE],
            "disk_reads": disk[Direction.LOAD],
            "disk_writes": disk[Direction.STORE],
            "pulls": Traffic() if engine.wire is None else engine.wire.traffic,
        },
        last_step_ns=books.last_step_ns,
        waited_ns=engine.clock.waited_ns,
        digest=books.digest,
    )
