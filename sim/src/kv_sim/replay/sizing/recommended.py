"""Which capacity and which policy to take, of those that were tried.

**The knee** is the capacity at which the best policy's token ratio lies highest above the straight line from
nothing to room for everything. Below the knee more room gains more than average, above it less. If no capacity
lies above that line by more than `WORTH_CHANGING` (as when requests cycle through all blocks), there is no knee,
and the smallest capacity with the highest ratio is recommended.

**The policy** of the recommended point is the usual one unless another one is better there by more than
`WORTH_CHANGING`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from kv_sim.replay.caches.policies import USUAL_POLICY
from kv_sim.replay.caches.ratios import Ratios

WORTH_CHANGING: Final = 0.005
"""Of prompt tokens; less is no reason to take another policy, or less room."""


@dataclass(frozen=True)
class Point:
    """One policy at one capacity."""

    policy: str
    capacity: int
    ratios: Ratios
    """Of all tiers together."""


def recommend(
    curves: Mapping[str, Sequence[Ratios]],
    capacities: Sequence[int],
    without: float,
    most_blocks: int,
    budget_blocks: int | None,
    medium: str = "host memory",
) -> tuple[Point, str]:
    """The knee of the best policy, or the budget if it ends before; and why."""
    tops = [max(curve[index].token for curve in curves.values()) for index in range(len(capacities))]
    rise, reach = max(tops) - without, max(most_blocks, capacities[-1])
    if rise <= 0:
        index, reason = 0, "it answers nothing on this trace at any size that was tried"
    else:
        above = [top / rise - size / reach for top, size in zip(tops, capacities, strict=True)]
        # That is above the line, as a share of the rise, but for what is answered without it.
        index, ends = above.index(max(above)), "it ends before the knee"
        reason = "the knee: up to here more room buys more than on average, from here on less"
        if above[index] * rise - without <= WORTH_CHANGING:
            index, ends = tops.index(max(tops)), "it ends before the most is answered"
            reason = "there is no knee: up to here more room buys no less than on average"
        if budget_blocks is not None and capacities[index] > budget_blocks:
            index = max(place for place, size in enumerate(capacities) if size <= budget_blocks)
            reason = f"the budget: {ends if tops[index] > without else f'up to there {medium} answers nothing'}"
    policy = max(curves, key=lambda name: curves[name][index].token)
    if (
        USUAL_POLICY in curves
        and curves[policy][index].token - curves[USUAL_POLICY][index].token <= WORTH_CHANGING
    ):
        policy = USUAL_POLICY
    return Point(policy, capacities[index], curves[policy][index]), reason
