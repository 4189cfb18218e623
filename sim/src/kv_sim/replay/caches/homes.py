"""``Home``: the files of one server, where several servers read each other's files.

Each server has its own home on the machine's disk. Only its manager stores and evicts there, and that manager
doesn't know of the other homes. A server loads the blocks of a prompt that its own home has from there, and
*borrows* the others from its *neighbours'* homes, whose managers count that as a use. A server doesn't store a
chunk that a neighbour has.

**Invariants** (``check``): a chunk is in one home at most, and ``Homes`` names that home exactly while its manager
has the chunk.
"""

import numpy as np

from kv_api import LookupResult, OffloadKey, ReqContext
from kv_offload_cpu import AtOnceManager
from kv_offload_cpu.load_store_spec import Stored
from kv_sim.replay.caches.cache import CacheRun, feed_in_turn
from kv_sim.replay.caches.medium import Loaded, MediumRun
from kv_sim.replay.caches.outcome import Outcome, Setup, add_up_sums
from kv_sim.replay.columns import Columns, Ints
from kv_sim.replay.trace import Tell


def replay_sharing(
    columns: Columns, setup: Setup, server_of: Ints, servers: int, progress: Tell = lambda count: None
) -> Outcome:
    """Replay a trace on servers that share their disks; ``server_of`` gives the server of each request."""
    homes, most = Homes(), np.bincount(server_of, weights=columns.counts, minlength=servers)
    runs = [CacheRun(setup, int(blocks), homes.open) for blocks in most]
    hits = feed_in_turn(runs, columns, server_of.tolist(), progress)
    return add_up_sums([run.outcome(*hits) for run in runs])


class Homes:
    """The homes of all servers, and which home has which chunk."""

    def __init__(self) -> None:
        self._owner_of: dict[OffloadKey, Home] = {}
        self._homes: list[Home] = []

    def open(self, manager: AtOnceManager) -> "Home":
        """Add an empty home with this manager."""
        home = Home(manager, self._owner_of)
        self._homes.append(home)
        return home

    def check(self) -> None:
        """Recount."""
        nobody = ReqContext("check")
        for home in self._homes:
            kept = home.traffic.stored - home.traffic.evicted
            known = sum(owner is home for owner in self._owner_of.values())
            assert kept == known, f"a home keeps {kept} chunks, and {known} are known to be in it"
            for key, owner in self._owner_of.items():
                expected = LookupResult.HIT if owner is home else LookupResult.MISS
                found = home.manager.lookup(key, nobody)
                assert found is expected, f"{key!r}: {found} in a home where it should be a {expected}"


class Home(MediumRun):
    """One server's home, as that server uses it; ``owner_of`` maps every chunk to the home that has it."""

    def __init__(self, manager: AtOnceManager, owner_of: "dict[OffloadKey, Home]") -> None:
        super().__init__(manager)
        self._owner_of = owner_of

    def found(self, keys: list[OffloadKey], context: ReqContext) -> int:
        """The length of the leading run of blocks that this home and its neighbours have together."""
        owner_of = self._owner_of
        return next((place for place, key in enumerate(keys) if key not in owner_of), len(keys))

    def load(self, keys: list[OffloadKey], context: ReqContext) -> Loaded:
        """Load that run: from this home what it has, the others from neighbours."""
        run = keys[: self.found(keys, context)]
        by_owner: dict[Home, list[OffloadKey]] = {}
        for key in run:
            by_owner.setdefault(self._owner_of[key], []).append(key)
        own = by_owner.pop(self, [])
        for owner, lent in by_owner.items():
            owner.lend(lent)
        loaded = self.manager.load_prefix(own, context) if own else 0
        assert loaded == len(own), f"{len(own)} chunks were here, {loaded} were loaded"
        return Loaded(len(run), len(run) - loaded, bool(run) and self._owner_of[run[-1]] is not self)

    def lend(self, keys: list[OffloadKey]) -> None:
        """A neighbour loads these blocks from this home."""
        neighbour = ReqContext("a neighbour")
        self.manager.touch(keys, neighbour)
        self.manager.on_request_finished(neighbour)

    def _store(self, keys: list[OffloadKey], context: ReqContext) -> Stored | None:
        """Store the blocks that no neighbour has."""
        owner_of = self._owner_of
        stored = super()._store([key for key in keys if owner_of.get(key, self) is self], context)
        if stored is not None:
            for key in stored.evicted:
                del owner_of[key]
            owner_of.update(dict.fromkeys(stored.keys, self))
        return stored
