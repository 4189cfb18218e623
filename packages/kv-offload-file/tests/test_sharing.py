"""Engines of one machine that share a folder: each finds what others stored, and loads it from where it lies."""

import json
import os
import threading
from dataclasses import replace

import pytest
from kv_offload_file_rig import TAKEN, Rig, config, make_key, make_keys

from kv_api import ConfigError, KVError, LookupResult, ReqContext
from kv_offload_file import FileOffloadingSpec, home_folder
from kv_offload_file.label import ROW_BYTES
from kv_offload_file.sharing.listing import ENTRY_BYTES
from kv_offload_file.sharing.place import MOST_SLOTS
from kv_offload_file.stats import BORROWED, DAMAGED, ERRORS, GONE


def engine(folder, number=0, chunks=6, **settings):
    return Rig(folder, chunks, file_shared=True, file_engine=number, **settings)


@pytest.fixture
def two(tmp_path):
    rigs = [engine(tmp_path, number) for number in range(2)]
    yield rigs
    for rig in rigs:
        rig.check()
        rig.stop()


def counts(rig):
    return {name: number for rank in rig.ranks for name, number in rank.worker.take_counts().items()}


def test_what_one_stored_the_other_finds_and_loads(two):
    first, second = two
    assert second.hits([1, 2]) == 0
    assert first.store([1, 2]) == make_keys([1, 2])
    assert second.hits([1, 2]) == 2 and second.load([1, 2])
    assert second.manager.lookup(make_key(2), second.context) is LookupResult.HIT
    assert second.manager.get_stats().data[BORROWED] == 2
    assert BORROWED not in first.manager.get_stats().data
    assert BORROWED not in second.manager.get_stats().data, "it was told once"


def test_each_has_a_home_of_its_own(two, tmp_path):
    first, second = two
    assert (first.folder.name, second.folder.name) == ("engine-0", "engine-1")
    assert [home_folder(str(tmp_path), config(tmp_path), "", number) for number in range(2)] == [
        first.folder,
        second.folder,
    ]
    assert first.folder.parent == second.folder.parent
    assert json.loads((first.folder / "meaning.json").read_text())["engine"] == "any"
    assert first.folder.parent != home_folder(str(tmp_path), config(tmp_path), "")


def test_a_prompt_may_lie_here_and_there(two):
    first, second = two
    first.store([1, 4])
    second.store([2, 3])
    first.store([5])
    assert first.hits([1, 2, 3, 4, 5, 6]) == 5 and second.hits([1, 2, 3, 4, 5, 6]) == 5
    assert first.load([1, 2, 3, 4, 5]) and second.load([5, 4, 3, 2, 1])
    assert second.hits([2, 6, 3]) == 1


def test_what_is_on_its_way_here_is_waited_for(two):
    first, second = two
    first.store([1, 3])
    second.manager.prepare_store([make_key(2)], second.context)
    found = second.manager.lookup_prefix(make_keys([1, 2, 3]), second.context)
    assert found == (1, LookupResult.HIT_PENDING)
    assert first.hits([1, 2, 3]) == 1, "who stores it elsewhere hasn't yet"
    second.manager.complete_store([make_key(2)], second.context, success=False)
    assert second.hits([1, 2, 3]) == 1 == first.hits([1, 2, 3])


def test_what_is_on_its_way_here_is_waited_for_where_a_neighbour_has_it_by_now(two):
    """Both stored it at once. One by one or together, the answer is the same, and can be loaded."""
    first, second = two
    second.manager.prepare_store([make_key(2)], second.context)
    first.store([1, 2, 3])
    one_by_one = [second.manager.lookup(key, second.context) for key in make_keys([1, 2, 3])]
    assert one_by_one == [LookupResult.HIT, LookupResult.HIT_PENDING, LookupResult.HIT]
    assert second.manager.lookup_prefix(make_keys([1, 2, 3]), second.context) == (1, LookupResult.HIT_PENDING)
    second.manager.complete_store([make_key(2)], second.context)
    assert second.manager.lookup_prefix(make_keys([1, 2, 3]), second.context) == (3, LookupResult.HIT)
    second.end_load([1, 2, 3], second.begin_load([1, 2, 3]))


def test_what_a_neighbour_has_is_not_stored_twice(two):
    first, second = two
    first.store([1, 2])
    assert second.store([1, 2, 3]) == [make_key(3)]
    assert (
        second.manager.prepare_stores([([make_key(1)], ReqContext("a")), ([make_key(4)], ReqContext("b"))])[
            0
        ].keys_to_store
        == []
    )
    second.manager.complete_store([make_key(4)], second.context, success=False)


def test_what_both_have_each_loads_from_its_own(two):
    first, _ = two
    outputs = [rig.manager.prepare_store([make_key(1)], rig.context) for rig in two]
    assert [output.keys_to_store for output in outputs] == [[make_key(1)]] * 2
    for rig in two:
        rig.manager.complete_store([make_key(1)], rig.context, success=False)
    first.store([1])
    spec = first.begin_load([1])
    assert max(spec.block_ids) < 6
    assert first.end_load([1], spec)
    assert first.manager.get_stats().data.get(BORROWED) is None


def test_what_is_borrowed_stays_until_it_was_read(two):
    """Its owner evicts others, and the end of a prompt before its beginning."""
    first, second = two
    first.store([1, 2, 3, 4, 5, 6])
    spec = second.begin_load([5, 6])
    first.store([7, 8, 9])
    assert [number for number in range(1, 10) if second.hits([number])] == [1, 5, 6, 7, 8, 9]
    assert second.end_load([5, 6], spec)
    first.store([10, 11, 12])
    first.store([13, 14, 15])
    assert first.hits([5]) == first.hits([6]) == 0, "they leave as any other"


def test_what_neighbours_use_stays_longer(two):
    """As if it had been used here. What went before it could be borrowed was used by nobody."""
    first, second = two
    for number in range(1, 7):
        first.context = ReqContext(f"request {number}")
        first.store([number])
    assert second.load([1, 2]) and second.load([2])
    first.context = ReqContext("another")
    first.store([7, 8])
    assert [number for number in range(1, 9) if first.hits([number])] == [1, 2, 5, 6, 7, 8]
    assert second.hits([5, 6]) == 2
    first.store([9, 10])
    assert first.hits([5]) == 0
    told = []
    second.manager._own.uses = told.extend
    spec = second.manager.prepare_load(make_keys([5, 6]), second.context)
    assert not second.end_load([5, 6], spec) and told == []


def test_a_use_of_what_there_is_not_is_no_use(two):
    first, _ = two
    first.store([1])
    first.manager._neighbours.take_used = lambda: [99, 6, 5, 0]
    assert first.hits([1, 2]) == 1


def test_a_store_for_which_only_borrowed_chunks_could_leave_is_refused(two):
    first, second = two
    first.store([1, 2, 3, 4, 5, 6])
    spec = second.begin_load([1, 2, 3, 4, 5])
    assert first.store([7]) == [make_key(7)]
    assert first.store([8, 9]) is None
    assert second.end_load([1, 2, 3, 4, 5], spec)
    assert first.store([8, 9]) == make_keys([8, 9])


def test_several_loads_of_one_chunk_borrow_it_until_the_last_ends(two):
    first, second = two
    first.store([1, 2, 3, 4, 5, 6])
    specs = [second.begin_load([1]) for _ in range(3)]
    for spec in specs:
        assert first.store([7]) is not None
        assert second.end_load([1], spec)
        assert first.manager._own.lent() == ([0] if spec is not specs[-1] else [])
    with pytest.raises(KVError, match=r"complete_load: chunk .* is not here"):
        second.manager.complete_load([make_key(1)], second.context)


def test_what_was_borrowed_goes_on_to_be_when_it_is_stored_here_meanwhile(two):
    first, second = two
    output = second.manager.prepare_store([make_key(1)], second.context)
    first.store([1])
    second.manager.complete_store(output.keys_to_store, second.context, success=False)
    spec = second.begin_load([1])
    assert second.store([1]) == [], "a neighbour has it"
    again = second.begin_load([1])
    assert again.block_ids == spec.block_ids
    assert second.end_load([1], spec) and second.end_load([1], again)


def test_what_is_being_loaded_from_here_is_not_borrowed_when_it_is_forgotten(two):
    """The end of that load would be taken for the end of the other one."""
    first, second = two
    outputs = [rig.manager.prepare_store([make_key(1)], rig.context) for rig in two]
    for rig, output in zip(two, outputs, strict=True):
        rig.manager.complete_store(output.keys_to_store, rig.context)
    spec = second.begin_load([1])
    second.manager.drop([make_key(1)])
    assert second.hits([1]) == 0 and second.store([1]) == []
    assert second.manager.lookup(make_key(1), second.context) is LookupResult.MISS
    second.end_load([1], spec)
    assert second.hits([1]) == 1 and first.manager._own.lent() == []
    assert second.manager.lookup(make_key(1), second.context) is LookupResult.HIT
    second.begin_load([1])
    assert first.manager._own.lent() == [0]
    second.manager.complete_load([make_key(1)], second.context)


def test_what_is_being_borrowed_is_not_stored_when_its_owner_forgets_it(two):
    first, second = two
    first.store([1])
    spec = second.begin_load([1])
    first.manager.reset_cache()
    first.manager.on_reset_flushed()
    assert second.hits([1]) == 0 and second.store([1]) == []
    second.end_load([1], spec)
    assert second.store([1]) == [make_key(1)] and second.load([1])


def test_what_left_is_not_found(two):
    first, second = two
    first.store([1, 2, 3, 4, 5, 6])
    assert second.hits([6]) == 1
    first.store([7])
    assert second.hits([6]) == 0 and second.hits([7]) == 1


def test_what_went_between_lookup_and_load_is_a_failed_load(two):
    first, second = two
    first.store([1, 2, 3, 4, 5, 6])
    assert second.hits([4, 5, 6]) == 3
    first.store([7, 0])
    spec = second.manager.prepare_load(make_keys([4, 5, 6]), second.context)
    assert not second.end_load([4, 5, 6], spec)
    assert counts(second)[GONE] == 2
    spec = second.begin_load([4, 5, 6])
    assert not second.end_load([4, 5, 6], spec), "nobody has these any more"
    assert counts(second)[GONE] == 2
    assert second.load([3, 4]) and not counts(second)


def test_a_load_may_begin_with_what_is_there_no_more_and_end_as_any_other(two):
    """What isn't kept isn't given back either."""
    first, second = two
    spec = second.begin_load([1])
    assert not second.end_load([1], spec)
    first.store([1])
    assert second.load([1])
    assert first.manager._own.lent() == []


def test_bytes_that_are_wrong_at_a_neighbour_are_not_loaded_and_not_asked_for_again(two):
    first, second = two
    first.store([1, 2])
    with (first.folder / "rank-0.slots").open("r+b") as file:
        file.write(b"spoilt" * 20)
    rows = (first.folder / "rank-0.rows").read_bytes()
    keys = make_keys([1])
    spec = second.begin_load([1])
    second.manager.drop(keys)  # as kv-offload does when a load fails
    assert not second.end_load([1], spec)
    assert counts(second) == {DAMAGED: 1}
    assert (first.folder / "rank-0.rows").read_bytes() == rows, "what isn't its own it leaves alone"
    assert second.hits([1]) == 0 and second.hits([2]) == 1
    assert second.store([1]) == keys and second.load([1])


def test_what_its_owner_found_wrong_meanwhile_has_gone(two):
    first, second = two
    first.store([1])
    assert second.hits([1]) == 1
    with (first.folder / "rank-0.rows").open("r+b") as rows:
        rows.seek(ROW_BYTES)
        rows.write(bytes(ROW_BYTES))
    spec = second.begin_load([1])
    assert not second.end_load([1], spec)
    assert counts(second) == {GONE: 1}


def test_what_was_wrong_is_found_again_when_it_is_stored_anew(two):
    first, second = two
    first.store([1])
    spec = second.begin_load([1])
    second.manager.drop([make_key(1)])
    second.manager.complete_load([make_key(1)], second.context)
    assert spec.block_ids and second.hits([1]) == 0
    first.manager.drop([make_key(1)])
    first.store([1])
    assert second.hits([1]) == 1 and second.load([1])


def test_what_its_owner_found_wrong_is_not_found_elsewhere(two):
    first, second = two
    first.store([1, 2])
    first.manager.drop([make_key(1), make_key(9)])
    assert second.hits([1]) == 0 and second.hits([2]) == 1


def test_who_is_reset_shares_with_nobody_who_was_there_before(two, tmp_path):
    first, second = two
    first.store([1])
    second.store([2])
    first.manager.reset_cache()
    first.manager.on_reset_flushed()
    assert first.hits([1]) == first.hits([2]) == 0 == second.hits([1])
    assert second.hits([2]) == 1
    first.store([3])
    second.store([4])
    assert (first.hits([3]), first.hits([4]), second.hits([3]), second.hits([4])) == (1, 0, 0, 1)
    second.manager.reset_cache()
    second.manager.on_reset_flushed()
    assert second.hits([3]) == second.hits([4]) == 0, "whose weights changed how, nobody knows"
    third = engine(tmp_path, 2)
    assert third.hits([1]) == third.hits([2]) == third.hits([3]) == third.hits([4]) == 0
    third.stop()


def test_all_that_start_after_a_reset_share_again(tmp_path):
    rigs = [engine(tmp_path, number) for number in range(2)]
    rigs[0].store([1])
    rigs[1].store([2])
    rigs[1].manager.reset_cache()
    rigs[1].manager.on_reset_flushed()
    rigs[1].store([3])
    for rig in rigs:
        rig.stop()
    rigs = [engine(tmp_path, number) for number in range(2)]
    assert [rig.hits([number]) for rig in rigs for number in (1, 2, 3)] == [0] * 6
    rigs[0].store([4])
    assert rigs[1].load([4])
    for rig in rigs:
        rig.stop()


def test_a_load_from_before_a_reset_ends_with_the_reset(two):
    first, second = two
    first.store([1, 2, 3, 4, 5, 6])
    spec = second.begin_load([1, 2])
    second.manager.reset_cache()
    assert first.manager._own.lent() == [0, 1] and first.store([7]) is not None
    assert second.store([1]) == [], "a job for it is under way"
    assert second.end_load([1], second.manager.places([make_key(1)], [spec.block_ids[0]])) is False
    assert first.manager._own.lent() == [1], "this one said that it has ended"
    second.manager.on_reset_flushed()
    assert first.manager._own.lent() == []
    assert second.store([1, 2]) == make_keys([1, 2])


def test_two_resets_give_back_what_was_borrowed_before_the_first(two):
    first, second = two
    first.store([1])
    second.begin_load([1])
    second.manager.reset_cache()
    second.manager.reset_cache()
    assert first.manager._own.lent() == [0]
    second.manager.on_reset_flushed()
    assert first.manager._own.lent() == []


def test_what_an_engine_left_its_neighbours_find(tmp_path):
    """Whether it was told to end or not; and it finds its own again."""
    first, second = engine(tmp_path, 0), engine(tmp_path, 1)
    first.store([1, 2])
    first.kill()
    assert second.hits([1, 2]) == 2 and second.load([1, 2])
    first = engine(tmp_path, 0)
    assert first.hits([1, 2]) == 2 and second.hits([1, 2]) == 2
    first.stop()
    assert second.load([2, 1])
    second.stop()
    second = engine(tmp_path, 1)
    assert second.load([1, 2]), "nobody else is there"
    second.stop()


def test_a_neighbour_that_starts_anew_with_less_room(tmp_path):
    first, second = engine(tmp_path, 0), engine(tmp_path, 1)
    first.store([1, 2, 3, 4, 5, 6])
    assert second.hits([1, 2, 3, 4, 5, 6]) == 6
    first.stop()
    first = engine(tmp_path, 0, 2)
    assert [number for number in range(1, 7) if second.hits([number])] == [1, 2]
    assert second.load([1, 2])
    first.stop()
    first = engine(tmp_path, 0, 9)
    first.store([7, 8, 9, 10, 11, 12, 13])
    assert [number for number in range(1, 14) if second.hits([number])] == [1, 2, *range(7, 14)]
    assert second.load([13, 7])
    for rig in (first, second):
        rig.stop()


def test_a_process_that_ends_keeps_nothing_back(tmp_path):
    first, second = engine(tmp_path, 0), engine(tmp_path, 1)
    first.store([1, 2, 3, 4, 5, 6])
    second.begin_load([1, 2, 3, 4, 5, 6])
    assert first.manager._own.lent() == [0, 1, 2, 3, 4, 5] and first.store([7]) is None
    second.kill()
    assert first.store([7]) == [make_key(7)]
    first.stop()


def test_ranks_read_those_of_their_own_number(tmp_path):
    rigs = [engine(tmp_path, number, ranks=2) for number in range(3)]
    for number, rig in enumerate(rigs):
        rig.store([number])
    assert all(rig.load([0, 1, 2]) for rig in rigs)
    for rig in rigs:
        rig.check()
        rig.stop()


def test_ranks_that_hold_the_same_read_the_first_ones(tmp_path):
    rigs = [engine(tmp_path, number, ranks=2, replicated=True) for number in range(2)]
    rigs[0].store([1, 2])
    assert rigs[1].load([2, 1])
    for rig in rigs:
        rig.stop()


def staged(folder, number, stages):
    """An engine of two stages, which knows by now how many slots both have."""
    rig = engine(folder, number, ranks=2, stages=stages)
    rig.manager.limit_chunks(6)
    return rig


def test_stages_that_hold_the_same_layers_share(tmp_path):
    rigs = [staged(tmp_path, number, ["ab", "c"]) for number in range(2)]
    rigs[0].store([1, 2])
    assert rigs[1].load([2, 1])
    for rig in rigs:
        rig.check()
        rig.stop()
    rigs = [staged(tmp_path, number, ["ab", "c"]) for number in range(2)]
    assert rigs[1].load([1, 2])
    for rig in rigs:
        rig.stop()


def test_stages_that_hold_other_layers_are_not_read(tmp_path):
    """Whose engines can't be told apart by what the scheduler knows: a failed load."""
    first, second = staged(tmp_path, 0, ["ab", "c"]), staged(tmp_path, 1, ["a", "bc"])
    first.store([1, 2])
    assert second.hits([1, 2]) == 2 and not second.load([1, 2])
    assert all(rank.worker.take_counts().keys() == {GONE} for rank in second.ranks)
    first.stop()
    first = staged(tmp_path, 0, ["a", "bc"])
    first.store([3])
    assert second.load([3])
    for rig in (first, second):
        rig.stop()


def test_who_cuts_its_layers_otherwise_later_is_read_from_the_files_that_it_has_then(tmp_path):
    before = os.listdir("/proc/self/fd")
    first, second = staged(tmp_path, 0, ["ab", "c"]), staged(tmp_path, 1, ["ab", "c"])
    first.store([1])
    assert second.load([1])
    first.stop()
    staged(tmp_path, 0, ["a", "bc"]).stop()
    first = staged(tmp_path, 0, ["ab", "c"])
    first.store([2, 1])
    assert second.load([1]), "from the files that it has now"
    for rig in (first, second):
        rig.stop()
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_replicas_share_by_their_numbers(tmp_path):
    def replica(index):
        made = config(tmp_path, file_shared=True)
        return FileOffloadingSpec(replace(made, parallel=replace(made.parallel, data_parallel_index=index)))

    specs = [replica(index) for index in range(2)]
    assert [spec.engine for spec in specs] == [0, 1]
    assert [spec.folder.name for spec in specs] == ["engine-0", "engine-1"]
    assert specs[0].folder.parent == specs[1].folder.parent
    told = replace(specs[1].config, extra_config={**specs[1].config.extra_config, "file_engine": 0})
    assert FileOffloadingSpec(told).engine == 0, "unless it is said otherwise"


def test_what_means_something_else_is_not_shared(tmp_path):
    rigs = [engine(tmp_path, 0, file_tag=tag) for tag in ("", "tuned")]
    rigs[0].store([1])
    assert rigs[1].hits([1]) == 0
    for rig in rigs:
        rig.stop()


def test_who_shares_and_who_does_not_live_apart(tmp_path):
    rigs = [engine(tmp_path), Rig(tmp_path)]
    rigs[0].store([1])
    assert rigs[1].hits([1]) == 0
    assert [rig.ranks[0].worker.num_chunks for rig in rigs] == [6, 6], "whatever places there are"
    for rig in rigs:
        rig.stop()
    assert not (rigs[1].folder / "listing").exists()


def test_nothing_is_left_open(tmp_path):
    before = os.listdir("/proc/self/fd")
    rigs = [engine(tmp_path, number) for number in range(2)]
    rigs[0].store([1])
    assert rigs[1].load([1])
    for rig in rigs:
        rig.stop()
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_an_engine_that_can_not_begin_leaves_nothing_open(tmp_path):
    engine(tmp_path, 1).stop()
    before = os.listdir("/proc/self/fd")
    spec = FileOffloadingSpec(config(tmp_path, file_shared=True, eviction_policy="none"))
    with pytest.raises(ConfigError, match="none"):
        spec.get_manager()
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_files_that_are_another_ones_by_now_are_known(two):
    first, second = two
    first.store([1])
    assert second.load([1])
    file = second.ranks[0].worker.engine._slots._theirs[0]
    assert file.is_current()
    rows = first.folder / "rank-0.rows"
    rows.rename(first.folder / "moved")
    assert not file.is_current()
    rows.write_bytes(b"")
    assert not file.is_current()


def test_threads_that_ask_for_a_neighbours_file_at_once_open_it_once(two):
    first, second = two
    first.store([1])
    slots = second.ranks[0].worker.engine._slots
    opened, there = [], threading.Barrier(4)
    made = slots._open_file
    slots._open_file = lambda number: opened.append(number) or made(number)

    def ask():
        there.wait()
        with slots._file_of(0):
            pass

    asking = [threading.Thread(target=ask) for _ in range(4)]
    for thread in asking:
        thread.start()
    for thread in asking:
        thread.join()
    assert opened == [0]


def test_files_that_are_gone_are_a_failed_load(two):
    first, second = two
    first.store([1])
    for path in first.folder.glob("rank-*"):
        path.unlink()
    assert not second.load([1])
    assert counts(second) == {ERRORS: 1}
    assert not (first.folder / "rank-0.rows").exists(), "nothing is made in another one's home"


def test_room_is_taken_for_the_listing(tmp_path):
    room = {"file_bytes_to_use": 10 * (TAKEN + ENTRY_BYTES)}
    assert FileOffloadingSpec(config(tmp_path, file_shared=True, **room)).num_chunks == 10
    assert FileOffloadingSpec(config(tmp_path, **room)).num_chunks == 10
    room = {"file_bytes_to_use": 10 * (2 * TAKEN + ENTRY_BYTES), "file_shared": True}
    assert FileOffloadingSpec(config(tmp_path, ranks=2, **room)).num_chunks == 10, "there is one for all ranks"
    room = {"file_bytes_to_use": 10 * (TAKEN + ENTRY_BYTES) - 1}
    assert FileOffloadingSpec(config(tmp_path, file_shared=True, **room)).num_chunks == 9
    room = {"file_bytes_to_use": MOST_SLOTS * (TAKEN + ENTRY_BYTES)}
    assert FileOffloadingSpec(config(tmp_path, file_shared=True, **room)).num_chunks == MOST_SLOTS
    assert FileOffloadingSpec(config(tmp_path, **room)).num_chunks > MOST_SLOTS
    with pytest.raises(ConfigError, match=r"less than one chunk, which takes 4416: .*, and 64 in the listing"):
        FileOffloadingSpec(config(tmp_path, file_shared=True, file_bytes_to_use=4415))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            {"file_engine": 0},
            "file_engine: 0; it tells apart engines that share (file_shared)",
        ),
        (
            {"file_shared": True, "file_bytes_to_use": 2**37},
            "file_bytes_to_use: 31122951 chunks; an engine that shares has at most 8388608",
        ),
    ],
)
def test_what_can_not_be_is_refused(tmp_path, settings, said):
    with pytest.raises(ConfigError) as refused:
        FileOffloadingSpec(config(tmp_path, **settings))
    assert str(refused.value) == said


def test_a_replica_whose_number_is_too_large_is_refused(tmp_path):
    made = config(tmp_path, file_shared=True)
    with pytest.raises(ConfigError, match="file_shared: engine 253; those that share have numbers below 253"):
        FileOffloadingSpec(replace(made, parallel=replace(made.parallel, data_parallel_index=253)))


@pytest.mark.parametrize("number", [0, 3])
def test_two_of_the_same_number_are_refused(tmp_path, number):
    first = engine(tmp_path, number)
    with pytest.raises(ConfigError) as refused:
        engine(tmp_path, number)
    assert str(refused.value) == (
        f"file_dir: {first.folder} is in use by another engine (process {os.getpid()}); "
        f"each of those that share has a number of its own (file_engine, here {number})"
    )
    first.stop()
