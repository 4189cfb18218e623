"""``Setup`` and ``Outcome``: the caches that a replay is told to have, and what it says of them in the end."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from kv_offload import StoreWhen
from kv_sim.replay.caches.medium import Traffic
from kv_sim.replay.caches.policies import USUAL_POLICY
from kv_sim.replay.columns import Columns, Ints


@dataclass(frozen=True)
class Setup:
    """One server's caches: their sizes, their policy, and when they store."""

    policy: str = USUAL_POLICY
    capacity: int = 0
    """Blocks of host memory; 0: there is none."""
    gpu_blocks: int = 0
    """Blocks of the GPU's prefix cache; 0: it keeps nothing."""
    store_threshold: int = 0
    policy_module: str | None = None
    disk: int = 0
    """Blocks of files behind host memory; 0: there are none."""
    disk_store_threshold: int = 0
    store_when: StoreWhen = StoreWhen.COMPUTED
    """Whether blocks are stored once they are computed, or when the GPU's prefix cache is about to evict them."""

    @property
    def blocks(self) -> int:
        """How many blocks all tiers together hold, the GPU included."""
        return self.gpu_blocks + self.capacity + self.disk


class Borrowed(NamedTuple):
    """What each request loaded from the disks of other servers."""

    blocks: Ints
    """How many of its ``disk_hits`` came from there."""
    last: Ints
    """1 if the last block of the prompt was among them, otherwise 0."""


class RequestHits(NamedTuple):
    """The hits of each request by the tier that had them, in blocks."""

    gpu: Ints
    cpu: Ints
    disk: Ints
    """Includes hits on other servers' disks."""
    borrowed: Borrowed | None = None
    """None: there is one server."""


@dataclass
class Outcome:
    """The result of a replay: per request the hits of each tier, in blocks, and what the media stored.

    Only one medium loads for a request, so ``cpu_hits`` or ``disk_hits`` is 0.
    """

    setup: Setup
    gpu_hits: Ints
    cpu_hits: Ints
    disk_hits: Ints
    borrowed: Borrowed | None = None
    """The part of ``disk_hits`` that came from the disks of other servers; None: servers don't share files."""
    host: Traffic = field(default_factory=Traffic)
    disk: Traffic = field(default_factory=Traffic)

    @property
    def loaded(self) -> Ints:
        """The hits of the medium that loaded."""
        return self.cpu_hits + self.disk_hits

    def check(self, columns: Columns, servers: int = 1) -> None:
        """Check the sums of an outcome of ``servers`` servers together."""
        assert (self.gpu_hits + self.loaded <= columns.counts).all(), "more hits than blocks"
        assert not (self.cpu_hits * self.disk_hits).any(), "two media loaded for one request"
        for slots, traffic in ((self.setup.capacity, self.host), (self.setup.disk, self.disk)):
            kept = traffic.stored - traffic.evicted
            assert 0 <= kept <= servers * slots, f"{kept} chunks kept in {servers * slots} slots"
        if self.borrowed is not None:
            blocks, last = self.borrowed
            assert (blocks <= self.disk_hits).all(), "more blocks borrowed than hit on disks"
            assert (last <= blocks).all(), "a last block counts as borrowed in a request that borrowed none"
            reached = self.gpu_hits + self.disk_hits == columns.counts
            assert reached[last == 1].all(), "a last block counts as borrowed but is no hit"


def add_up_sums(outcomes: Sequence[Outcome]) -> Outcome:
    """The sums of all servers' media, with the first server's setup."""
    host, disk = Traffic(), Traffic()
    for outcome in outcomes:
        host, disk = host.plus(outcome.host), disk.plus(outcome.disk)
    return replace(outcomes[0], host=host, disk=disk)
