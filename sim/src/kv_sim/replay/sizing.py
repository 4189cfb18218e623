"""How much memory to buy: hit ratios over capacities and policies, the knee, and a configuration for it.

**Work shared.** LRU at all capacities comes from one pass over the trace; only capacities below the longest
prompt, and other policies, are replayed, side by side in processes. With a GPU tier of g blocks in front, an LRU
of c blocks answers together with it what an LRU of max(c, g) does, since both keep the most recent blocks in the
same order.

**The knee** is the capacity at which the best policy's token ratio lies highest above the straight line from no
host memory to memory for everything: up to there a GiB buys more than on average, from there on less.

**The policy** of the recommended point is ``lru``, the default, unless another one is better there by more than
`WORTH_CHANGING`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import exp, log
from typing import Any, Final

from kv_api import ConfigError
from kv_offload_cpu.policy import POLICIES
from kv_sim.replay.bounds import infinite_hits, min_hits
from kv_sim.replay.cache import Setup
from kv_sim.replay.columns import Columns
from kv_sim.replay.curve import Ratios, Totals
from kv_sim.replay.parallel import replay_all
from kv_sim.replay.shape import Shape
from kv_sim.replay.stack import longest_prompt, lru_curve
from kv_sim.replay.tally import hits_by_tier
from kv_sim.replay.units import Footprint

WORTH_CHANGING: Final = 0.005
SMALLEST_SHARE: Final = 0.001
"""Of all blocks of the trace, where a sweep begins."""
LRU: Final = "lru"


@dataclass(frozen=True)
class Point:
    """One policy at one capacity."""

    policy: str
    capacity: int
    ratios: Ratios
    """Of host memory and the GPU's tier together."""


@dataclass(frozen=True)
class Sizing:
    """The curves of a trace, and what follows from them."""

    trace: str
    notes: tuple[str, ...]
    requests: int
    duration_seconds: float
    totals: Totals
    unique_blocks: int
    footprint: Footprint
    gpu_blocks: int
    capacities: tuple[int, ...]
    curves: Mapping[str, tuple[Ratios, ...]]
    """By policy, a value for each capacity."""
    best: tuple[Ratios, ...]
    infinite: Ratios
    gpu_alone: Ratios
    recommended: Point
    reason: str
    policy_module: str | None = None
    """Where policies come from that kv-offload-cpu doesn't have."""

    @property
    def policies(self) -> tuple[str, ...]:
        """The policies, in the order asked for."""
        return tuple(self.curves)

    @property
    def knee_gib(self) -> float | None:
        """Host memory of the recommended point."""
        size = self.footprint.bytes_of(self.recommended.capacity)
        return None if size is None else size / 2**30

    @property
    def is_worth_it(self) -> bool:
        """Whether host memory of the recommended size answers anything that the GPU alone doesn't."""
        return self.recommended.ratios.token > self.gpu_alone.token

    def gains(self) -> list[float]:
        """At each capacity, by how much the best token ratio rises with one block more, on the way to the next."""
        tops = [max(curve[index].token for curve in self.curves.values()) for index in range(len(self.capacities))]
        return [
            (tops[index + 1] - tops[index]) / (self.capacities[index + 1] - self.capacities[index])
            for index in range(len(tops) - 1)
        ] + [0.0]

    def config(self) -> dict[str, Any] | None:
        """The value of ``--kv-transfer-config`` for the recommended point.

        None without the bytes of a token, and where host memory answers nothing.
        """
        size = self.footprint.bytes_of(self.recommended.capacity)
        if size is None or not self.is_worth_it:
            return None
        return transfer_config(size, self.recommended.policy, self.policy_module)


def transfer_config(cpu_bytes: int, policy: str, policy_module: str | None = None) -> dict[str, Any]:
    """The configuration of a server with so much host memory for KV, over all its workers."""
    module = {} if policy in POLICIES or policy_module is None else {"cache_policy_module_path": policy_module}
    return {
        "kv_connector": "OffloadingConnector",
        "kv_connector_module_path": "kv_vllm",
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {"cpu_bytes_to_use": cpu_bytes, "eviction_policy": policy, **module},
    }


def usual_capacities(unique_blocks: int, points: int) -> list[int]:
    """Capacities in even steps of a logarithm, from a thousandth of all blocks to all of them."""
    if points < 2:
        raise ConfigError(f"--points: expected at least 2, got {points}")
    top = max(unique_blocks, 1)
    low = max(1.0, top * SMALLEST_SHARE)
    step = (log(top) - log(low)) / (points - 1)
    sizes = [round(exp(log(low) + step * index)) for index in range(points)]
    return sorted({min(size, top) for size in sizes})


def size_trace(
    columns: Columns,
    shape: Shape,
    policies: Sequence[str],
    capacities: Sequence[int],
    footprint: Footprint,
    *,
    gpu_blocks: int = 0,
    budget_blocks: int | None = None,
    jobs: int = 1,
    progress: Callable[[float], None] = lambda share: None,
    policy_module: str | None = None,
) -> Sizing:
    """Sweep, and recommend."""
    if not policies or not capacities:
        raise ConfigError("size needs at least one policy and one capacity")
    totals = Totals.of(columns)
    sizes = sorted(set(capacities) | ({budget_blocks} if budget_blocks else set()))
    curves = sweep(
        columns,
        shape,
        policies,
        sizes,
        gpu_blocks=gpu_blocks,
        jobs=jobs,
        progress=progress,
        policy_module=policy_module,
    )
    infinite = infinite_hits(columns, shape).ratios(totals)
    gpu_alone = lru_curve(columns, shape, max(1, gpu_blocks)).at(gpu_blocks).ratios(totals)
    chosen, reason = recommend(curves, sizes, gpu_alone.token, shape.unique_blocks, budget_blocks)
    best = tuple(min_hits(columns, shape, size + gpu_blocks).ratios(totals) for size in sizes)
    return Sizing(
        columns.name,
        columns.notes,
        len(columns),
        columns.duration_seconds,
        totals,
        shape.unique_blocks,
        footprint,
        gpu_blocks,
        tuple(sizes),
        curves,
        best,
        infinite,
        gpu_alone,
        chosen,
        reason,
        policy_module,
    )


def sweep(
    columns: Columns,
    shape: Shape,
    policies: Sequence[str],
    capacities: Sequence[int],
    *,
    gpu_blocks: int = 0,
    jobs: int = 1,
    progress: Callable[[float], None] = lambda share: None,
    policy_module: str | None = None,
) -> dict[str, tuple[Ratios, ...]]:
    """The ratios of each policy at each capacity: LRU's from one pass where it is exact, all others replayed."""
    totals, found = Totals.of(columns), {}
    longest = longest_prompt(columns)
    if LRU in policies:
        curve = lru_curve(columns, shape, max(*capacities, gpu_blocks, 1))
        found = {(LRU, size): curve.at(max(size, gpu_blocks)) for size in capacities if size >= longest}
    wanted = [(policy, size) for policy in dict.fromkeys(policies) for size in capacities]
    setups = [
        Setup(policy, size, gpu_blocks, policy_module=policy_module)
        for policy, size in wanted
        if (policy, size) not in found
    ]
    for setup, outcome in zip(setups, replay_all(columns, setups, jobs, progress), strict=True):
        gpu, cpu = hits_by_tier(columns, outcome)
        both = gpu.plus(cpu)
        found[setup.policy, setup.capacity] = both
    return {
        policy: tuple(found[policy, size].ratios(totals) for size in capacities)
        for policy in dict.fromkeys(policies)
    }


def recommend(
    curves: Mapping[str, Sequence[Ratios]],
    capacities: Sequence[int],
    without: float,
    unique_blocks: int,
    budget_blocks: int | None,
) -> tuple[Point, str]:
    """The knee of the best policy, or the budget if it ends before; and why."""
    tops = [max(curve[index].token for curve in curves.values()) for index in range(len(capacities))]
    rise, reach = max(tops) - without, max(unique_blocks, capacities[-1])
    if rise <= 0:
        index, reason = 0, "it answers nothing on this trace at any size that was tried"
    else:
        above = [top / rise - size / reach for top, size in zip(tops, capacities, strict=True)]
        # That is above the line, up to a constant.
        index = above.index(max(above))
        reason = "the knee: up to here a GiB buys more than on average, from here on less"
        if budget_blocks is not None and capacities[index] > budget_blocks:
            index = max(place for place, size in enumerate(capacities) if size <= budget_blocks)
            ends = (
                "it ends before the knee" if tops[index] > without else "up to there host memory answers nothing"
            )
            reason = f"the budget: {ends}"
    policy = max(curves, key=lambda name: curves[name][index].token)
    if LRU in curves and curves[policy][index].token - curves[LRU][index].token <= WORTH_CHANGING:
        policy = LRU
    return Point(policy, capacities[index], curves[policy][index]), reason
