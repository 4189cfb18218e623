"""Workers that hold the same bytes: one file has them, its first worker writes them, and all read them."""

import os

from kv_offload_file_rig import TAKEN, Rig, config, make_keys

from kv_api import GPULoadStoreSpec
from kv_offload_cpu import StoreRole
from kv_offload_file import FileOffloadingSpec


def files(rig):
    return {path.name for path in rig.folder.iterdir() if path.suffix in (".slots", ".rows")}


def test_all_room_is_for_one_copy(tmp_path):
    room = {"file_bytes_to_use": 12 * TAKEN}
    specs = {
        replicated: FileOffloadingSpec(config(tmp_path, ranks=3, replicated=replicated, **room))
        for replicated in (False, True)
    }
    assert {replicated: spec.num_chunks for replicated, spec in specs.items()} == {False: 4, True: 12}
    assert {replicated: spec.replicated_layout for replicated, spec in specs.items()} == {False: False, True: True}
    sizes = [spec.file_info.file_kv_cache_size_bytes for spec in specs.values()]
    assert sizes == [12 * 4096, 12 * 4096], "of all files together"


def test_what_the_first_one_stored_all_load(tmp_path):
    rig = Rig(tmp_path, 40, ranks=3, replicated=True, blocks_per_chunk=1)
    assert rig.store(range(16)) == make_keys(range(16))
    assert rig.load([3, 0, 15, 7]) and rig.load(range(16))
    assert files(rig) == {"rank-0.slots", "rank-0.rows"}
    rig.check()
    rig.stop()
    again = Rig(tmp_path, 40, ranks=3, replicated=True, blocks_per_chunk=1)
    assert again.hits(range(20)) == 16 and again.load(range(16))
    again.kill()
    again = Rig(tmp_path, 40, ranks=3, replicated=True, blocks_per_chunk=1)
    assert again.hits(range(20)) == 16 and again.load(range(16))
    again.stop()


def test_the_others_copy_nothing_for_a_store(tmp_path):
    """Where they are asked at all, as vLLM's connector asks, they say at once that they have."""
    rig = Rig(tmp_path, ranks=2, replicated=True)
    assert [rank.worker._store_role for rank in rig.ranks] == [StoreRole.WRITES, StoreRole.ACKNOWLEDGES]
    output = rig.manager.prepare_store(make_keys([1]), rig.context)
    other = rig.ranks[1].worker
    assert other.submit_store(7, GPULoadStoreSpec([0, 1], [2], [0]), output.store_spec)
    assert [(result.job_id, result.success) for result in other.get_finished()] == [(7, True)]
    rig.manager.complete_store(make_keys([1]), rig.context)
    assert not rig.load([1]), "nobody stored it"
    assert sum(rank.worker.take_counts()["vllm:kv_offload_file_damaged"] for rank in rig.ranks) == 2
    rig.stop()


def test_who_only_reads_leaves_nothing_open(tmp_path):
    before = os.listdir("/proc/self/fd")
    rig = Rig(tmp_path, ranks=2, replicated=True)
    rig.stop()
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_who_only_reads_says_nothing_of_the_files(tmp_path):
    """That they are closed, or how large slots are, is for the one to say that writes them."""
    rig = Rig(tmp_path, ranks=2, replicated=True)
    [rows] = rig.folder.glob("*.rows")
    header = rows.read_bytes()[:256]
    rig.store([1])
    first, other = rig.ranks
    other.worker.shutdown()
    assert rows.read_bytes()[:256] == header
    first.worker.shutdown()
    assert rows.read_bytes()[:256] != header
    rig.stop()


def test_what_one_of_them_finds_wrong_is_wrong_for_all(tmp_path):
    rig = Rig(tmp_path, ranks=2, replicated=True)
    rig.store([1])
    [slots] = rig.folder.glob("*.slots")
    with slots.open("r+b") as file:
        file.write(b"spoilt" * 2000)
    spec = rig.manager.prepare_load(make_keys([1]), rig.context)
    other = rig.ranks[1].worker
    other.submit_load(5, spec, GPULoadStoreSpec([0, 1], [2], [0]))
    other.wait({5})
    assert [result.success for result in other.get_finished()] == [False]
    rig.manager.complete_load(make_keys([1]), rig.context)
    rig.stop()
    again = Rig(tmp_path, ranks=2, replicated=True)
    assert again.hits([1]) == 0, "its row says nothing any more"
    again.stop()


def test_a_copy_each_again_takes_nothing_for_granted(tmp_path):
    """The folder is the same: what the first worker has, and another one not, nobody loads."""
    one = Rig(tmp_path, ranks=2, replicated=True)
    one.store([1])
    one.stop()
    each = Rig(tmp_path, ranks=2)
    assert each.folder == one.folder and each.hits([1]) == 0
    each.store([1, 2])
    assert each.load([1, 2])
    each.stop()
    one = Rig(tmp_path, ranks=2, replicated=True)
    assert one.hits([1, 2]) == 2
    one.stop()
