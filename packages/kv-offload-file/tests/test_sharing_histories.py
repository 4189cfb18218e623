"""Random histories of engines that share a folder, over real files, with restarts, kills, resets and spoilt bytes.

No load brings wrong bytes. What an engine has, all find that share with it; what was borrowed is loaded, whatever
its owner stores meanwhile; and what an engine tells its neighbours is what it has.
"""

import tempfile
from pathlib import Path

from hypothesis import example, given, settings
from hypothesis import strategies as st
from kv_offload_file_rig import Rig, make_key

from kv_api import LookupResult
from kv_offload_file.sharing.listing import read_entries

CHUNKS = 5
ENGINES = 3
KINDS = ("store", "store", "store", "begin", "begin", "end", "stop", "kill", "reset", "change", "drop")

actions = st.lists(
    st.tuples(st.sampled_from(KINDS), st.integers(0, ENGINES - 1), st.integers(0, 11), st.integers(1, 4)),
    max_size=30,
)


class Borrowed:
    """Loads that have begun and not ended: what they load, and who had it then and must have it still."""

    def __init__(self, numbers, spec, owners):
        self.numbers, self.spec, self.owners = numbers, spec, owners
        self.is_sure = True


class Street:
    """Some engines that share a folder, what is said to be wrong there, and what is being loaded."""

    def __init__(self, folder, policy, ranks):
        self.folder, self.policy, self.ranks = folder, policy, ranks
        self.rigs = [self.start(number) for number in range(ENGINES)]
        self.spoilt = set()
        self.distrusted = set()
        """Engine and chunk: what it dropped while it borrowed it, and need not find until it is stored anew."""
        self.loads = [[] for _ in range(ENGINES)]

    def start(self, number):
        shared = {"file_shared": True, "file_engine": number, "eviction_policy": self.policy}
        return Rig(self.folder, CHUNKS, ranks=self.ranks, **shared)

    def has(self, number, chunk):
        """Whether an engine has a chunk in its own files."""
        return self.rigs[number].manager._pool.is_resident(make_key(chunk))

    def shares(self, one, other):
        return self.rigs[one].manager._home.epoch == self.rigs[other].manager._home.epoch

    def finds(self, number, chunk):
        rig = self.rigs[number]
        return rig.manager.lookup(make_key(chunk), rig.context) is LookupResult.HIT

    def store(self, number, first, size):
        self.rigs[number].store([chunk % 12 for chunk in range(first, first + size)])

    def begin(self, number, first, size):
        numbers = [chunk for chunk in range(first, first + size) if self.finds(number, chunk)]
        if numbers:
            near = [other for other in range(ENGINES) if self.shares(number, other)]
            owners = {other for other in near for chunk in numbers if self.has(other, chunk)}
            self.loads[number].append(Borrowed(numbers, self.rigs[number].begin_load(numbers), owners))

    def end(self, number, first, size):
        if self.loads[number]:
            load = self.loads[number].pop(first % len(self.loads[number]))
            rig = self.rigs[number]
            if self.spoilt.isdisjoint(load.numbers):
                assert rig.end_load(load.numbers, load.spec) or not load.is_sure
            else:
                rig.end_load(load.numbers, load.spec)

    def doubt(self, number):
        """What is loaded from an engine may have gone."""
        for load in [load for loads in self.loads for load in loads]:
            load.is_sure &= number not in load.owners

    def end_all(self, number):
        while self.loads[number]:
            self.end(number, 0, 1)

    def stop(self, number, first, size):
        self.end_all(number)
        self.rigs[number].check()
        self.rigs[number].stop()
        self.rigs[number] = self.start(number)

    def kill(self, number, first, size):
        self.loads[number].clear()
        self.rigs[number].kill()
        self.rigs[number] = self.start(number)

    def reset(self, number, first, size):
        manager = self.rigs[number].manager
        manager.reset_cache()
        self.doubt(number)
        assert not any(self.finds(number, chunk) for chunk in range(12))
        self.end_all(number)
        manager.on_reset_flushed()

    def change(self, number, first, size):
        """Bytes of a slot change, as by a disk that is broken. No engine can be sure of that chunk any more."""
        slots = self.rigs[number].manager._pool.slot_of
        path = self.rigs[number].folder / f"rank-{first % self.ranks}.slots"
        for chunk in range(12):
            if slots.get(make_key(chunk)) == size % CHUNKS:
                self.spoilt.add(chunk)
                with path.open("r+b") as file:
                    file.seek(slots[make_key(chunk)] * 4096)
                    file.write(b"\xff" * 3)

    def drop(self, number, first, size):
        if make_key(first) in self.rigs[number].manager._borrowed:
            self.distrusted.add((number, first))
        self.rigs[number].manager.drop([make_key(first)])
        self.doubt(number)

    def check(self):
        for number, rig in enumerate(self.rigs):
            rig.check()
            rig.manager._neighbours.check()
            listed = {key: slot for slot, key in read_entries(rig.manager._own._fd, range(CHUNKS))}
            pool = rig.manager._pool
            assert listed == {key: slot for key, slot in pool.slot_of.items() if pool.is_resident(key)}
            for other in range(ENGINES):
                if self.shares(number, other):
                    sure = [chunk for chunk in range(12) if self.has(other, chunk) and chunk not in self.spoilt]
                    stale = rig.manager._stale
                    doubted = [chunk for chunk in sure if (number, chunk) in self.distrusted]
                    sure = [chunk for chunk in sure if chunk not in doubted and make_key(chunk) not in stale]
                    assert all(self.finds(number, chunk) for chunk in sure)

    def close(self):
        for number in range(ENGINES):
            self.end_all(number)
        assert [rig.manager._own.lent() for rig in self.rigs] == [[]] * ENGINES
        for rig in self.rigs:
            rig.stop()


@settings(max_examples=30)
@given(actions, st.sampled_from(["lru", "arc", "sieve", "s3fifo"]), st.sampled_from([1, 1, 2]))
@example([("store", 0, 0, 4), ("begin", 1, 0, 4), ("store", 0, 4, 4), ("end", 1, 0, 1)], "lru", 1)
@example([("store", 0, 0, 4), ("begin", 1, 0, 4), ("reset", 1, 0, 1), ("store", 1, 0, 4)], "arc", 2)
@example([("store", 1, 0, 1), ("begin", 0, 0, 1), ("drop", 0, 0, 1)], "lru", 1)
@example(
    [("store", 0, 0, 4), ("begin", 1, 0, 4), ("kill", 0, 0, 1), ("store", 0, 5, 4), ("end", 1, 0, 1)], "lru", 1
)
@example(  # two engines have borrowed of one: the system names the locks in no order of slots
    [
        *[("store", 1, 3, 4), ("begin", 2, 4, 3), ("store", 2, 0, 1), ("store", 1, 0, 4)],
        *[("begin", 0, 1, 2), ("store", 1, 2, 4)],
    ],
    "lru",
    2,
)
def test_engines_that_share(acts, policy, ranks):
    with tempfile.TemporaryDirectory() as folder:
        street = Street(Path(folder), policy, ranks)
        for kind, *where in acts:
            getattr(street, kind)(*where)
            street.check()
        street.close()
