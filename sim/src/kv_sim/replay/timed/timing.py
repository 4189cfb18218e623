"""How long a step and a copy take: a roofline and a link. Pure sums in whole nanoseconds.

A step reads all weights once and each scheduled request's context once, and computes two operations a parameter
and token, and four a head, its size, and each pair of a token and one before it. It takes as long as the slower of
the two, memory or arithmetic, plus a constant for everything that the host does in it. A copy takes its bytes over
the link plus a constant for each piece that lies together in the GPU's memory.

Every duration is rounded up to a nanosecond before it is added to a clock, so a sum of steps doesn't depend on who
adds them, or in which portions.
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
    """Of a token that is computed and one that it attends to, itself among them."""
    context: int = 0
    """Tokens whose keys and values are read."""

    def add(self, computed: int, count: int) -> None:
        """A request with ``computed`` tokens computes ``count`` more."""
        self.tokens += count
        self.pairs += count * computed + count * (count + 1) // 2
        self.context += computed + count


@dataclass(frozen=True)
class StepCosts:
    """Nanoseconds of a step, by what it does."""

    ns_per_token: float
    ns_per_pair: float
    ns_of_weights: float
    ns_per_context_token: float
    overhead_ns: int
    """Before the forward pass: scheduling, launching, sampling, telling the client."""
    idle_ns: int
    """Of a step that computes nothing while requests wait."""

    def forward_ns(self, tokens: int, pairs: int, context: int) -> int:
        """The forward pass alone."""
        arithmetic = tokens * self.ns_per_token + pairs * self.ns_per_pair
        memory = self.ns_of_weights + context * self.ns_per_context_token
        return int(arithmetic if arithmetic > memory else memory) + 1


@dataclass(frozen=True)
class LinkCosts:
    """Nanoseconds of a copy in one direction."""

    ns_per_byte: float
    ns_per_piece: float
    block_bytes: int
    """Of all ranks together. If their links work side by side, ``ns_per_byte`` counts it."""
    pieces_per_block: int

    @property
    def block_ns(self) -> float:
        """A block of a job."""
        return self.block_bytes * self.ns_per_byte + self.pieces_per_block * self.ns_per_piece

    def job_ns(self, blocks: int) -> int:
        """A job of so many blocks."""
        return int(blocks * self.block_ns) + 1


@dataclass
class Clock:
    """The time of one engine, in nanoseconds since the trace began. It only goes forward."""

    now: int = 0
    busy_until: int = 0
    """When the device has finished everything that it was given."""
    waited_ns: int = 0
    """How long the host waited for copies in the middle of steps: for fences, and for loads of the step itself."""

    def wait_until(self, moment: int) -> None:
        """The host waits for copies until ``moment``."""
        self.waited_ns += max(0, moment - self.now)
        self.now = max(self.now, moment)
