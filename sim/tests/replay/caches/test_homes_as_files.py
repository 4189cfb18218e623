"""The replay of servers that share a disk against kv-offload-file's managers, with the listings that they read."""

import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kv_sim_file_specs import spec_of
from kv_sim_fleets import routed, traces

from kv_api import OffloadKey, ReqContext
from kv_offload_cpu import AtOnceManager
from kv_offload_cpu.load_store_spec import Stored
from kv_offload_file import FileOffloadingSpec
from kv_offload_file.sharing.manager import SharingManager
from kv_offload_file.sharing.place import slot_of_neighbour
from kv_sim.replay.caches.cache import CacheRun, feed_in_turn
from kv_sim.replay.caches.homes import Homes
from kv_sim.replay.caches.medium import Loaded, MediumRun
from kv_sim.replay.caches.outcome import Setup
from kv_sim.replay.servers.fleet import Fleet
from kv_sim.replay.servers.routing import Routing

SLOT = FileOffloadingSpec.SLOT_ALIGNMENT


class Files(MediumRun):
    """A server's own manager of files, in the place of the replay's; copies end at once."""

    def __init__(self, manager: AtOnceManager, shared: SharingManager, all_of_them: list[SharingManager]) -> None:
        super().__init__(manager)
        self._shared = shared
        self._all = all_of_them

    def found(self, keys: list[OffloadKey], context: ReqContext) -> int:
        return self._shared.lookup_prefix(keys, context).hits

    def load(self, keys: list[OffloadKey], context: ReqContext) -> Loaded:
        run = keys[: self.found(keys, context)]
        if not run:
            return Loaded(0)
        places = self._shared.prepare_load(run, context)
        self._shared.complete_load(run, context)
        for manager in self._all:  # each hears of a use before the next one
            manager._look()
        borrowed = [slot_of_neighbour(place) is not None for place in places.block_ids]  # type: ignore[attr-defined]
        return Loaded(len(run), sum(borrowed), borrowed[-1])

    def _store(self, keys: list[OffloadKey], context: ReqContext) -> Stored | None:
        output = self._shared.prepare_store(keys, context)
        if output is None:
            return None
        self._shared.complete_store(output.keys_to_store, context)
        return Stored([*output.keys_to_store], [], [*output.evicted_keys])


def opened(folder: str, servers: int, setup: Setup) -> Callable[[AtOnceManager], Files]:
    """Makes the files of one server after the other."""
    managers: list[SharingManager] = []
    for engine in range(servers):
        settings = {
            "file_dir": folder,
            "file_shared": True,
            "file_engine": engine,
            "eviction_policy": setup.policy,
        }
        room = setup.disk * (SLOT + FileOffloadingSpec.ROW_BYTES + FileOffloadingSpec.LISTED_BYTES)
        manager = spec_of({**settings, "file_bytes_to_use": room}, SLOT).get_manager()
        assert isinstance(manager, SharingManager)
        manager._neighbours._clock = iter(range(10**6)).__next__  # type: ignore[attr-defined]
        managers.append(manager)
    left = iter(managers)
    return lambda manager: Files(manager, next(left), managers)


@pytest.mark.once
@settings(max_examples=40)
@given(
    requests=traces,
    servers=st.integers(2, 4),
    seed=st.integers(0, 99),
    policy=st.sampled_from(["lru", "arc", "s3fifo", "sieve"]),
    disk=st.integers(1, 12),
)
def test_files_that_are_shared_do_what_their_replay_says(
    requests: list[list[int]], servers: int, seed: int, policy: str, disk: int
) -> None:
    trace = routed(requests, Fleet(servers, Routing.ROUND_ROBIN, disk_shared=True), seed)
    setup = Setup(policy, disk=disk)
    homes = Homes()
    told = [CacheRun(setup, open_disk=homes.open) for _ in range(servers)]
    expected = feed_in_turn(told, trace.columns, trace.server_of.tolist())
    with tempfile.TemporaryDirectory() as folder:
        open_disk = opened(str(Path(folder)), servers, setup)
        runs = [CacheRun(setup, open_disk=open_disk) for _ in range(servers)]
        hits = feed_in_turn(runs, trace.columns, trace.server_of.tolist())
    assert hits.disk.tolist() == expected.disk.tolist()
    assert [part.tolist() for part in hits.borrowed] == [part.tolist() for part in expected.borrowed]
    assert [run.sums.disk for run in runs] == [run.sums.disk for run in told]
