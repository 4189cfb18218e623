"""How long a step and a copy take: a roofline and a link, in whole nanoseconds.

A step reads all weights once and each scheduled request's context once. It computes two operations for each
parameter and token, and four for each number of each head and each pair of a token and one that it attends to. The
slower of memory and arithmetic decides, plus a constant for the host's work. A copy takes the time of its bytes on
the link, plus a constant for each contiguous piece in the GPU's memory.

Every duration is rounded up to a nanosecond before it is added to a clock, so the sum is the same in whichever
portions steps are added.
"""

from dataclasses import dataclass

SECOND = 1_000_000_000
"""Nanoseconds."""


def to_ns(seconds: float) -> int:
    """The nearest nanosecond."""
    return round(seconds * SECOND)


@dataclass
class Work:
    """What one step computes."""

    tokens: int = 0
    pairs: int = 0
    """Pairs of a computed token and a token that it attends to; a token also attends to itself."""
    context: int = 0
    """Tokens whose keys and values are read."""

    def add(self, computed: int, count: int) -> None:
        """Add a request with ``computed`` tokens that computes ``count`` more."""
        self.tokens += count
        self.pairs += count * computed + count * (count + 1) // 2
        self.context += computed + count


@dataclass(frozen=True)
class StepCosts:
    """Nanoseconds of each part of a step."""

    ns_per_token: float
    ns_per_pair: float
    ns_of_weights: float
    ns_per_context_token: float
    overhead_ns: int
    """The host's work before the forward pass: scheduling, launching, sampling, answering clients."""
    idle_ns: int
    """A step that computes nothing while requests wait."""

    def forward_ns(self, tokens: int, pairs: int, context: int) -> int:
        """How long the forward pass alone takes."""
        arithmetic = tokens * self.ns_per_token + pairs * self.ns_per_pair
        memory = self.ns_of_weights + context * self.ns_per_context_token
        return int(arithmetic if arithmetic > memory else memory) + 1


@dataclass(frozen=True)
class LinkCosts:
    """Nanoseconds of a copy in one direction."""

    ns_per_byte: float
    ns_per_piece: float
    block_bytes: int
    """Over all ranks. If their links work in parallel, ``ns_per_byte`` takes that into account."""
    pieces_per_block: int

    @property
    def block_ns(self) -> float:
        """How long one block of a job takes."""
        return self.block_bytes * self.ns_per_byte + self.pieces_per_block * self.ns_per_piece

    def job_ns(self, blocks: int) -> int:
        """How long a job of ``blocks`` blocks takes."""
        return int(blocks * self.block_ns) + 1


@dataclass
class Clock:
    """The time of one engine, in nanoseconds since the trace began. It only goes forward."""

    now: int = 0
    busy_until: int = 0
    """When the device finishes all work that it was given."""
    waited_ns: int = 0
    """How long the host waited for copies in the middle of steps: at fences, and for the step's own loads."""

    def wait_until(self, moment: int) -> None:
        """The host waits for copies until ``moment``."""
        self.waited_ns += max(0, moment - self.now)
        self.now = max(self.now, moment)
