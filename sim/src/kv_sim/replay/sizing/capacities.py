"""How much memory or disk to buy: hit ratios over capacities and policies, and a configuration for one of them.

**What is sized** is host memory, or files on a disk; these may lie behind host memory of a size that is given. Of
several servers each gets as much, and hits are those of all.

**Work shared.** LRU at all capacities comes from one pass over the trace; only capacities below the longest
prompt, and other policies, are replayed, side by side in processes. With a GPU tier of g blocks in front, an LRU
of c blocks answers together with it what an LRU of max(c, g) does, since both keep the most recent blocks in the
same order. So do files behind host memory, if every prompt fits into either. Media that store what the GPU is
about to lose have other blocks than it, and are replayed; so are servers that share their disks.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, log
from typing import Any, Final

from kv_api import ConfigError
from kv_offload import StoreWhen
from kv_sim.replay.caches.outcome import Setup
from kv_sim.replay.caches.ratios import Hits, Ratios, Totals
from kv_sim.replay.caches.stack import longest_prompt, lru_curve
from kv_sim.replay.caches.tally import hits_by_tier
from kv_sim.replay.crew import HERE, Crew
from kv_sim.replay.hit_rates.facts import WholeFacts, facts_of
from kv_sim.replay.hit_rates.setups import replay_all
from kv_sim.replay.servers.fleet import RoutedTrace, add_up
from kv_sim.replay.sizing.around import ALONE, Around, Disk
from kv_sim.replay.sizing.recommended import WORTH_CHANGING, Point, recommend
from kv_sim.replay.sizing.transfer_config import disk_bytes_for, disk_config, host_config
from kv_sim.replay.units import Footprint

LRU: Final = "lru"
SMALLEST_SHARE: Final = 0.001
"""Of all blocks of the trace, where a sweep begins."""


@dataclass(frozen=True)
class Sizing(WholeFacts):
    """The curves of a trace, and what follows from them."""

    footprint: Footprint
    gpu_blocks: int
    capacities: tuple[int, ...]
    curves: Mapping[str, tuple[Ratios, ...]]
    """By policy, a value for each capacity."""
    best: tuple[Ratios, ...]
    gpu_alone: Ratios
    without: Ratios
    """The hits without the sized medium: of the GPU alone, or with the given host memory and its best policy."""
    recommended: Point
    reason: str
    policy_module: str | None = None
    """Where policies come from that kv-offload-cpu doesn't have."""
    disk: Disk | None = None
    """The disk that is sized. None: host memory is sized."""
    store_when: StoreWhen = StoreWhen.COMPUTED
    if_evicted: Point | None = None
    """What the same room answers with ``--store-when evicted``, if there is a GPU's cache and it isn't so now."""

    @property
    def policies(self) -> tuple[str, ...]:
        """The policies, in the order asked for."""
        return tuple(self.curves)

    @property
    def recommended_gib(self) -> float | None:
        """The recommended size in GiB; None if the bytes of a block aren't known."""
        size = self.footprint.bytes_of(self.recommended.capacity)
        return None if size is None else size / 2**30

    @property
    def is_worth_it(self) -> bool:
        """Whether the recommended size gains any hits over going without."""
        return self.recommended.ratios.token > self.without.token

    @property
    def gains_if_evicted(self) -> bool:
        """Whether ``--store-when evicted`` answers so much more that it is worth a change."""
        late = self.if_evicted
        now = max(self.recommended.ratios.token, self.without.token)
        return late is not None and late.ratios.token - now > WORTH_CHANGING

    @property
    def setup(self) -> Setup:
        """The setup of a replay of the recommended point."""
        return self._around.setup(self.recommended.policy, self.recommended.capacity)

    @property
    def medium(self) -> str:
        """What is sized, in words."""
        return self._around.medium

    @property
    def _around(self) -> Around:
        return Around(self.gpu_blocks, self.disk, self.policy_module, self.store_when)

    def gains(self) -> list[float]:
        """At each capacity, by how much the best token ratio rises with one block more, on the way to the next."""
        tops = [max(curve[index].token for curve in self.curves.values()) for index in range(len(self.capacities))]
        return [
            (tops[index + 1] - tops[index]) / (self.capacities[index + 1] - self.capacities[index])
            for index in range(len(tops) - 1)
        ] + [0.0]

    def config(self) -> dict[str, Any] | None:
        """The value of ``--kv-transfer-config`` for the recommended point.

        None if the bytes of a token aren't known, or nothing is gained.
        """
        chosen, block_bytes, when = self.recommended, self.footprint.block_bytes, self.store_when
        if block_bytes is None or not self.is_worth_it:
            return None
        if self.disk is None:
            cpu_bytes = chosen.capacity * block_bytes
            return host_config(cpu_bytes, chosen.policy, self.policy_module, store_when=when)
        module, folder, shared = self.policy_module, self.disk.folder, self.disk_shared
        disk_bytes = disk_bytes_for(chosen.capacity, block_bytes, shared=shared)
        host_bytes = self.disk.host_blocks * block_bytes
        return disk_config(folder, disk_bytes, host_bytes, chosen.policy, module, store_when=when, shared=shared)


def usual_capacities(most_blocks: int, points: int, least_blocks: int = 0) -> list[int]:
    """Capacities in even steps of a logarithm, from a thousandth of all blocks, or what is given, to all."""
    if points < 2:
        raise ConfigError(f"--points: expected at least 2, got {points}")
    top = max(most_blocks, 1)
    low = max(1.0, top * SMALLEST_SHARE, least_blocks)
    step = (log(top) - log(low)) / (points - 1)
    sizes = [round(exp(log(low) + step * index)) for index in range(points)]
    return sorted({min(size, top) for size in sizes})


def size_trace(
    trace: RoutedTrace,
    policies: Sequence[str],
    capacities: Sequence[int],
    footprint: Footprint,
    around: Around = ALONE,
    *,
    budget_blocks: int | None = None,
    crew: Crew = HERE,
) -> Sizing:
    """Sweep, and recommend; the capacities and the budget are of what is sized."""
    if not policies or not capacities:
        raise ConfigError("size needs at least one policy and one capacity")
    totals = Totals.of(trace.columns)
    sizes = sorted(set(capacities) | ({budget_blocks} if budget_blocks else set()))
    curves = sweep(trace, policies, sizes, around, crew)
    gpu_alone = _lru_hits(trace, [around.gpu_blocks])[0].ratios(totals)
    without = _best_in_front(trace, policies, around, Crew(crew.jobs)) if around.host_blocks else gpu_alone
    chosen, reason = recommend(curves, sizes, without.token, trace.most_blocks, budget_blocks, around.medium)
    if_evicted = None
    if around.gpu_blocks and around.store_when is StoreWhen.COMPUTED:
        is_worth_it = chosen.ratios.token > without.token
        most = max(size for size in sizes if budget_blocks is None or size <= budget_blocks)
        if_evicted = _if_evicted(trace, chosen.policy, chosen.capacity if is_worth_it else most, around)
    in_front = around.host_blocks + around.gpu_blocks
    best = tuple(trace.best_hits(size + in_front).ratios(totals) for size in sizes)
    return Sizing(
        **vars(facts_of(trace)),
        footprint=footprint,
        gpu_blocks=around.gpu_blocks,
        capacities=tuple(sizes),
        curves=curves,
        best=best,
        gpu_alone=gpu_alone,
        without=without,
        recommended=chosen,
        reason=reason,
        policy_module=around.policy_module,
        disk=around.disk,
        store_when=around.store_when,
        if_evicted=if_evicted,
    )


def sweep(
    trace: RoutedTrace,
    policies: Sequence[str],
    capacities: Sequence[int],
    around: Around = ALONE,
    crew: Crew = HERE,
) -> dict[str, tuple[Ratios, ...]]:
    """The ratios of each policy at each capacity: LRU's from one pass where it is exact, all others replayed."""
    columns, found = trace.columns, dict[tuple[str, int], Hits]()
    totals = Totals.of(columns)
    longest, in_front = longest_prompt(columns), around.host_blocks
    is_one_lru = around.store_when is StoreWhen.COMPUTED and (not in_front or in_front >= longest)
    if LRU in policies and is_one_lru and not trace.fleet.disk_shared:
        exact = [size for size in capacities if size >= longest]
        hits = _lru_hits(trace, [max(size, in_front, around.gpu_blocks) for size in exact])
        found = {(LRU, size): one for size, one in zip(exact, hits, strict=True)}
    wanted = [(policy, size) for policy in dict.fromkeys(policies) for size in capacities]
    left = [point for point in wanted if point not in found]
    setups = [around.setup(policy, size) for policy, size in left]
    for point, outcome in zip(left, replay_all(trace, setups, crew), strict=True):
        found[point] = hits_by_tier(columns, outcome).together()
    return {
        policy: tuple(found[policy, size].ratios(totals) for size in capacities)
        for policy in dict.fromkeys(policies)
    }


def _best_in_front(trace: RoutedTrace, policies: Sequence[str], around: Around, crew: Crew) -> Ratios:
    """What host memory answers that lies in front of what is sized, by the best policy."""
    totals = Totals.of(trace.columns)
    setups = [around.setup_in_front(policy) for policy in policies]
    answered = [hits_by_tier(trace.columns, outcome).together() for outcome in replay_all(trace, setups, crew)]
    return max((hits.ratios(totals) for hits in answered), key=lambda ratios: ratios.token)


def _if_evicted(trace: RoutedTrace, policy: str, size: int, around: Around) -> Point:
    """What so much of it answers that stores what the GPU evicts."""
    late = replace(around, store_when=StoreWhen.EVICTED)
    [outcome] = replay_all(trace, [late.setup(policy, size)])
    return Point(policy, size, hits_by_tier(trace.columns, outcome).together().ratios(Totals.of(trace.columns)))


def _lru_hits(trace: RoutedTrace, sizes: Sequence[int]) -> list[Hits]:
    """Those of LRU at each size, on all servers together."""
    if not sizes:
        return []
    curves = [lru_curve(share.columns, share.shape, max(sizes)) for share in trace.shares]
    return [add_up(curve.at(size) for curve in curves) for size in sizes]
