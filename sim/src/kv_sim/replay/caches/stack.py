"""LRU at all capacities in one pass: stack distances, one step for each segment of the trace.

**Theory of operation.** Think of an infinite cache as a stack with the last used block on top. LRU of capacity c
holds its top c blocks. A request puts its blocks on top, together, as its *pile*. Since users get older along a
prompt, later requests take blocks only from the front of a pile, so the rest of a pile is an interval of its
request's prompt. A block's depth is the size of the piles above its own, from a Fenwick tree over requests, plus
its place in its pile.

**Order.** kv_offload_cpu's ``lru`` evicts a request's tail before its head, so the head is on top of a pile
(``Order.HEAD_LAST``: the reversed order of access). The textbook's LRU accesses head to tail, so the tail is on
top (``Order.TAIL_LAST``).

**Where it equals the real policy.** Exactly, at every capacity of at least the longest prompt's blocks. Below
that, the real manager stores half of a prompt that doesn't fit (or a quarter, ...), while this curve counts as
much of its front as fits. `longest_prompt` says below which capacity to ask the manager instead.
"""

from enum import Enum

from kv_sim.replay.caches.curve import Curve, CurveBuilder
from kv_sim.replay.caches.shape import NOBODY, Shape
from kv_sim.replay.columns import Columns


class Order(Enum):
    """Which block of a request is the most recent one."""

    HEAD_LAST = "reversed"
    TAIL_LAST = "forward"


def longest_prompt(columns: Columns) -> int:
    """Blocks of the longest prompt: from this capacity on, the curve has the hits of the real ``lru``."""
    return int(columns.counts.max(initial=1))


def lru_curve(columns: Columns, shape: Shape, greatest: int, order: Order = Order.HEAD_LAST) -> Curve:
    """The hits of LRU at all capacities up to ``greatest``."""
    builder = CurveBuilder(columns, min(greatest, len(columns.blocks)))  # the curve is flat beyond
    piles = _Piles(shape.requests)
    counts = columns.counts.tolist()
    head_last = order is Order.HEAD_LAST
    current = 0
    taken: list[tuple[int, int]] = []
    segments = zip(
        shape.request.tolist(), shape.start.tolist(), shape.length.tolist(), shape.user.tolist(), strict=True
    )
    for request, start, length, user in segments:
        if request != current:
            piles.move(taken, current, counts[current])
            current, taken = request, []
        if user == NOBODY:
            continue
        above = piles.above(user)
        if head_last:
            builder.add_rising(request, start, length, above + 1)
        else:
            builder.add_at_once(request, start, length, above + piles.size_of(user))
        taken.append((user, length))
    return builder.build()


class _Piles:
    """How many blocks each request's pile has, and how many lie above it: a Fenwick tree from the newest on."""

    def __init__(self, requests: int) -> None:
        self._sizes = [0] * requests
        self._tree = [0] * (requests + 1)
        self._total = 0

    def size_of(self, request: int) -> int:
        return self._sizes[request]

    def above(self, request: int) -> int:
        """The blocks in newer piles."""
        tree, index, older = self._tree, request + 1, 0
        while index:
            older += tree[index]
            index &= index - 1
        return self._total - older

    def move(self, taken: list[tuple[int, int]], request: int, count: int) -> None:
        """A request of ``count`` blocks ends: it took blocks from the piles in ``taken``, and has a new pile."""
        for user, length in taken:
            self._change(user, -length)
        if count:
            self._change(request, count)

    def check(self) -> None:
        """Recount."""
        assert sum(self._sizes) == self._total, f"piles hold {sum(self._sizes)}, counted {self._total}"
        assert min(self._sizes, default=0) >= 0, "a pile below zero"

    def _change(self, request: int, by: int) -> None:
        self._sizes[request] += by
        self._total += by
        tree, size, index = self._tree, len(self._tree), request + 1
        while index < size:
            tree[index] += by
            index += index & -index
