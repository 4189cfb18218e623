"""vLLM's MooncakeStoreConnector over Mooncake's own library and master, and TCP. Run by the session ``vllm-long``.

And what stands for that library in ``vllms_mooncake_store.py`` says what it says.
"""

import ctypes
import gc

import numpy as np
import pytest
from kv_vllm_mooncake_master import Real, master, write_config
from kv_vllm_mooncake_pool import CURRENT, LIBRARY, Pool
from mooncake import store as library

from kv_sim.fuzz import run_seed
from kv_sim.subject import Subject, Trait
from kv_sim.violation import Invariant

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]

REAL = Subject(Real.__name__, Real.__module__, traits=frozenset())


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """Where a master is."""
    with master(tmp_path_factory.mktemp("master")) as address:
        yield address


@pytest.fixture
def _told(address, tmp_path, monkeypatch):
    """vLLM is told of it."""
    monkeypatch.setenv("MOONCAKE_CONFIG_PATH", write_config(tmp_path, address))
    yield
    for _ in range(5):
        gc.collect()


class AtOnce(LIBRARY.MooncakeDistributedStore):
    """The one in memory, with copies that happen at once, from and into any memory."""

    def _copy(self, direction, addresses, sizes, value):
        for place, address, size in zip(value.places, addresses, sizes, strict=True):
            to, from_ = (place, address) if direction.value == "store" else (address, place)
            np.copyto(bytes_at(to, size), bytes_at(from_, size))


def bytes_at(address, size):
    """Memory as an array."""
    return np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address))


def told_by(store, config):
    """What a client says and moves, of keys that are new, known, missing, and asked for in another size."""
    memory = np.zeros(4096, np.uint8)
    memory[:64], memory[64:128] = 7, 8
    begin = memory.__array_interface__["data"][0]
    said = [store.register_buffer(begin, memory.nbytes)]

    def places(*offsets, size=32):
        return [[begin + offset, begin + offset + size] for offset in offsets], [[size, size]] * len(offsets)

    said.append(store.batch_put_from_multi_buffers(["a", "b"], *places(0, 64), config))
    said.append(store.batch_put_from_multi_buffers(["a", "c"], *places(64, 0), config))
    said.append(store.batch_is_exist(["a", "b", "c", "d"]))
    said.append(store.batch_get_into_multi_buffers(["a", "d", "b"], *places(512, 1024, 2048)))
    said.append(store.batch_get_into_multi_buffers(["a"], *places(3072, size=16)))
    said.append(store.batch_get_into_multi_buffers(["a"], *places(3072, size=64)))
    said.append(store.remove_all(force=True))
    said.append(store.batch_is_exist(["a"]))
    return said, memory.tolist()


def test_what_stands_for_the_library_says_what_it_says(address):
    real = library.MooncakeDistributedStore()
    assert real.setup("127.0.0.1", "P2PHANDSHAKE", 1 << 24, 1 << 24, "tcp", "", address) == 0
    expected = told_by(real, library.ReplicateConfig())
    real.close()
    CURRENT.pool = Pool()
    assert told_by(AtOnce(), LIBRARY.ReplicateConfig()) == expected
    assert expected[0][4] == [64, -704, 64]


@pytest.mark.usefixtures("_told")
@pytest.mark.parametrize("traits", [(), (Trait.RANKS, Trait.GROUPS, Trait.STATES)], ids=["plain", "groups"])
def test_what_it_loads_is_right(traits):
    subject = Subject(REAL.kv_connector, REAL.module_path, traits=frozenset(traits))
    loads, found = 0, []
    for seed in range(8):
        run = run_seed(subject, seed, engine="vllm", without=frozenset({Invariant.CONSERVATION}))
        loads += run.coverage.situations["match: asynchronous load"]
        found += [] if run.failure is None else [str(run.failure.violation)]
    assert loads > 5
    assert all("in MooncakeStoreScheduler.build_connector_meta" in one for one in found), found


@pytest.mark.usefixtures("_told")
def test_what_it_leaves_open_is_told():
    """Its end closes the store. Who answers the scheduler, on a socket and in a thread, goes on."""
    run = run_seed(REAL, 1, engine="vllm", without=frozenset({Invariant.NO_CRASH}))
    assert run.failure is not None
    assert run.failure.violation.invariant is Invariant.CONSERVATION
