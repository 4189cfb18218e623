"""Random histories of an engine over real files, with restarts, kills and bytes that change.

No load brings wrong bytes, and what is known to be there is there, over restarts, too.
"""

import tempfile
from pathlib import Path

from hypothesis import example, given, settings
from hypothesis import strategies as st
from kv_offload_file_rig import Rig, make_keys

from kv_api import LookupResult

CHUNKS = 5

actions = st.lists(
    st.tuples(
        st.sampled_from(["store", "store", "store", "load", "load", "stop", "kill", "reset", "change", "cut"]),
        st.integers(0, 9),
        st.integers(1, 4),
    ),
    max_size=30,
)


class History:
    """An engine, and its chunks: ``whole`` are there and right, ``spoilt`` may be wrong or not there."""

    def __init__(self, folder, ranks, policy, replicated):
        self.folder, self.ranks, self.policy, self.replicated = folder, ranks, policy, replicated
        self.files = 1 if replicated else ranks
        self.rig = self.start()
        self.whole, self.spoilt = set(), set()

    def start(self):
        settings = {"replicated": self.replicated, "eviction_policy": self.policy}
        return Rig(self.folder, CHUNKS, ranks=self.ranks, events=True, **settings)

    def store(self, first, count):
        numbers = [*range(first, first + count)]
        output = self.rig.store(numbers)
        assert output is not None
        self.whole |= {*numbers} - self.spoilt
        for key in output:  # a chunk that is stored anew is right
            self.spoilt.discard(int(key[:-4]))
            self.whole.add(int(key[:-4]))
        self.forget_evicted()

    def forget_evicted(self):
        self.whole = {number for number in self.whole if self.is_there(number)}
        self.spoilt = {number for number in self.spoilt if self.is_there(number)}
        assert len(self.whole | self.spoilt) <= CHUNKS

    def is_there(self, number):
        return self.rig.manager.lookup(make_keys([number])[0], self.rig.context) is LookupResult.HIT

    def load(self, first, count):
        numbers = [number for number in range(first, first + count) if self.is_there(number)]
        if not numbers:
            return
        success = self.rig.load(numbers)  # which compares the bytes
        assert success or self.spoilt & {*numbers}
        if not success:
            self.rig.manager.drop(make_keys(numbers))
            self.whole -= {*numbers}
            self.spoilt -= {*numbers}

    def stop(self, first, count):
        self.rig.stop()
        self.begin_again()

    def kill(self, first, count):
        self.rig.kill()
        self.begin_again()

    def begin_again(self):
        self.rig = self.start()
        assert all(map(self.is_there, self.whole)), "forgotten over a restart"
        self.spoilt |= {number for number in range(14) if self.is_there(number)} - self.whole
        told = [(key, event.removed) for event in self.rig.manager.take_events() for key in event.keys]
        there = [number for number in range(14) if self.is_there(number)]
        assert sorted(told) == [(key, False) for key in make_keys(there)]

    def reset(self, first, count):
        self.rig.manager.reset_cache()
        self.rig.manager.on_reset_flushed()
        self.whole, self.spoilt = set(), set()
        assert not any(map(self.is_there, range(14)))

    def change(self, first, count):
        """A byte of a rank's file is another one."""
        path = self.rig.folder / f"rank-{first % self.files}.slots"
        place = first * path.stat().st_size // 10
        with path.open("r+b", buffering=0) as file:
            file.seek(place)
            byte = file.read(1)[0]
            file.seek(place)
            file.write(bytes([byte ^ 1]))
        self.spoilt |= self.whole
        self.whole = set()

    def cut(self, first, count):
        """The rows of a rank are gone."""
        path = self.rig.folder / f"rank-{first % self.files}.rows"
        with path.open("r+b") as file:
            file.seek(256 * (1 + first % CHUNKS))
            file.write(bytes(256 * count))
        self.spoilt |= self.whole
        self.whole = set()


@settings(max_examples=60)
@given(actions, st.integers(1, 2), st.sampled_from(["lru", "s3fifo"]), st.booleans())
@example([("store", 0, 4), ("kill", 0, 1), ("store", 4, 4), ("stop", 0, 1), ("load", 0, 4)], 2, "lru", False)
@example([("store", 0, 4), ("reset", 0, 1), ("store", 2, 1), ("kill", 0, 1), ("load", 0, 4)], 1, "lru", False)
@example([("store", 0, 4), ("change", 0, 1), ("stop", 0, 1), ("load", 0, 4), ("kill", 0, 1)], 2, "lru", False)
@example([("store", 0, 4), ("change", 0, 1), ("load", 0, 4), ("stop", 0, 1), ("load", 0, 4)], 2, "lru", True)
def test_any_history(acts, ranks, policy, replicated):
    with tempfile.TemporaryDirectory() as folder:
        history = History(Path(folder), ranks, policy, replicated)
        for name, first, count in acts:
            getattr(history, name)(first, count)
            history.rig.check()
            history.rig.manager.take_events()
        history.rig.stop()
