"""The interface of a medium: places of chunks, and what a manager, a worker and a spec do by themselves."""

import pickle
from array import array
from typing import Any

import pytest
from kv_api_offloading_config import offloading_config

import kv_api
from kv_api import CacheHitSource


def test_specs_hold_their_blocks_as_integers_of_32_bits_and_compare_by_value() -> None:
    spec = kv_api.GPULoadStoreSpec([5, 6, 9], group_sizes=[2, 1], block_indices=[3, 0])
    assert memoryview(spec.block_ids).format == "i"
    assert memoryview(spec.block_ids).itemsize == 4
    assert spec == pickle.loads(pickle.dumps(spec))
    assert spec != kv_api.GPULoadStoreSpec([5, 6, 9], [2, 1], [3, 1])
    assert spec != kv_api.BlockIDsLoadStoreSpec([5, 6, 9])
    assert repr(spec) == "GPULoadStoreSpec(block_ids=[5, 6, 9], group_sizes=(2, 1), block_indices=(3, 0))"
    with pytest.raises(TypeError, match="unhashable"):
        hash(spec)


def test_a_spec_stays_as_it_was_made() -> None:
    """A caller may go on with its numbers; the job may not change under the worker."""
    given, sizes = array("i", [5, 6]), [2]
    specs = [kv_api.BlockIDsLoadStoreSpec(given), kv_api.GPULoadStoreSpec(given, sizes, [0])]
    given[0], sizes[0] = 7, 1
    assert [list(spec.block_ids) for spec in specs] == [[5, 6]] * 2
    assert specs[1] == kv_api.GPULoadStoreSpec([5, 6], [2], [0])


@pytest.mark.parametrize(("sizes", "indices"), [([1], [0]), ([2], [0, 3]), ([1, 1], [5])])
def test_a_gpu_spec_whose_numbers_do_not_fit_is_refused(sizes: list[int], indices: list[int]) -> None:
    with pytest.raises(ValueError, match="blocks") as caught:
        kv_api.GPULoadStoreSpec([1, 2], tuple(sizes), tuple(indices))
    assert str(caught.value) == f"2 blocks don't fit group_sizes {sizes} with block_indices {indices}"


def test_places_of_another_medium_are_others() -> None:
    class Elsewhere(kv_api.BlockIDsLoadStoreSpec):
        pass

    assert Elsewhere([1]) == Elsewhere([1])
    assert Elsewhere([1]) != kv_api.BlockIDsLoadStoreSpec([1])


@pytest.mark.parametrize("count", [0, 1, 16, 17, 300])
def test_block_ids_are_the_same_in_any_number(count: int) -> None:
    numbers = [number * 7919 % 2**31 for number in range(count)]
    for some in (numbers, tuple(numbers), iter(numbers)):
        spec = kv_api.BlockIDsLoadStoreSpec(some)
        assert (list(spec.block_ids), spec.block_ids.typecode) == (numbers, "i")
    for wrong, error in ((2**31, OverflowError), (0.5, TypeError)):
        with pytest.raises(error):
            kv_api.BlockIDsLoadStoreSpec([*numbers, wrong])  # type: ignore[list-item]


def test_stores_are_prepared_one_after_the_other_up_to_the_first_refused() -> None:
    class Small(Manager):
        room = 3

        def prepare_store(self, keys: Any, req_context: Any) -> kv_api.PrepareStoreOutput | None:
            asked.append(req_context.req_id)
            if len(keys) > self.room:
                return None
            self.room -= len(keys)
            return kv_api.PrepareStoreOutput([*keys], kv_api.LoadStoreSpec(), [])

    keys = [kv_api.make_offload_key(b"%d" % number, 0) for number in range(6)]
    asked: list[str] = []
    offers = [
        (keys[start:end], kv_api.ReqContext(name)) for name, start, end in (("a", 0, 2), ("b", 2, 5), ("c", 5, 6))
    ]
    assert [output.keys_to_store for output in Small().prepare_stores(offers)] == [keys[:2]]
    assert asked == ["a", "b"]
    assert Small().prepare_stores([]) == []


class Manager(kv_api.OffloadingManager):
    def on_new_request(self, req_context: Any) -> kv_api.RequestOffloadingContext:
        return kv_api.RequestOffloadingContext()

    def lookup(self, key: Any, req_context: Any) -> kv_api.LookupResult:
        return kv_api.LookupResult.MISS

    def prepare_load(self, keys: Any, req_context: Any) -> kv_api.LoadStoreSpec:
        return kv_api.LoadStoreSpec()

    def prepare_store(self, keys: Any, req_context: Any) -> kv_api.PrepareStoreOutput | None:
        return None


class Spec(kv_api.OffloadingSpec):
    def get_manager(self) -> kv_api.OffloadingManager:
        return Manager()

    def get_worker(self, kv_caches: Any) -> kv_api.OffloadingWorker:
        raise NotImplementedError


def test_a_spec_reads_what_every_medium_needs() -> None:
    config = offloading_config()
    spec = Spec(config)
    assert spec.config is config
    assert spec.tokens_per_block == (16, 32)
    assert (spec.tokens_per_hash, spec.blocks_per_chunk) == (16, 2)
    assert spec.offload_prompt_only is True
    assert spec.replicated_layout is False
    assert spec.kv_events_config == kv_api.OffloadingKVEventsConfig(True, False)
    assert Spec.build_metric_definitions({}) == {}
    assert Spec.config_info_keys({}) == ()
    told = Spec(offloading_config(offload_prompt_only=False, self_describing_kv_events=True))
    assert told.offload_prompt_only is False
    assert told.kv_events_config.self_describing_kv_events is True


def test_a_manager_answers_by_default() -> None:
    manager, context = Manager(), kv_api.ReqContext("r")
    key = kv_api.make_offload_key(b"h", 0)
    with manager.lock:
        assert manager.get_load_source(key, context) is CacheHitSource.EXTERNAL_UNSPECIFIED
    assert manager.on_new_request(context).policy is kv_api.OffloadPolicy.CHUNK_LEVEL
    manager.touch([key], context)
    manager.complete_load([key], context)
    manager.complete_store([key], context)
    manager.on_request_finished(context)
    manager.on_schedule_end(kv_api.ScheduleEndContext((), ()))
    manager.reset_cache()
    manager.on_reset_flushed()
    manager.shutdown()
    assert (manager.has_pending_work(), manager.take_events(), manager.get_stats()) == (False, (), None)
    assert manager.config_info() == [{}]
    assert manager.limit_chunks(3) is False


class Worker(kv_api.OffloadingWorker):
    def submit_store(self, job_id: int, src_spec: Any, dst_spec: Any) -> bool:
        return False

    def submit_load(self, job_id: int, src_spec: Any, dst_spec: Any, expedited: bool = False) -> bool:
        return False

    def get_finished(self) -> list[kv_api.TransferResult]:
        return []

    def wait(self, job_ids: set[int]) -> None:
        self.waited = job_ids


def test_a_worker_of_a_medium_counts_nothing_by_default() -> None:
    worker = Worker()
    assert worker.take_counts() == {}
    worker.shutdown()


def test_a_worker_of_a_medium_lets_go_of_blocks_when_jobs_have_ended_by_default() -> None:
    worker = Worker()
    assert worker.let_go({1}) == ()
    assert worker.waited == {1}


def test_a_prefix_is_looked_up_key_by_key_up_to_the_first_that_is_no_hit() -> None:
    asked = []

    class Known(Manager):
        def lookup(self, key: Any, req_context: Any) -> kv_api.LookupResult:
            asked.append((key, req_context))
            return found[key]

    found = {
        kv_api.OffloadKey(b"a"): kv_api.LookupResult.HIT,
        kv_api.OffloadKey(b"b"): kv_api.LookupResult.HIT,
        kv_api.OffloadKey(b"c"): kv_api.LookupResult.RETRY,
        kv_api.OffloadKey(b"d"): kv_api.LookupResult.HIT,
    }
    keys, context = list(found), kv_api.ReqContext("r")
    assert Known().lookup_prefix(keys, context) == (2, kv_api.LookupResult.RETRY)
    assert asked == [(key, context) for key in keys[:3]]
    assert Known().lookup_prefix(keys[3:], context) == (1, kv_api.LookupResult.HIT)
    assert Known().lookup_prefix([], context) == (0, kv_api.LookupResult.HIT)
    Known().drop(keys)  # by default a medium keeps what it can't drop
    assert Known().lookup(keys[0], context) is kv_api.LookupResult.HIT


def test_config_info_makes_labels_of_fields() -> None:
    from dataclasses import dataclass

    @dataclass(frozen=True)
    class Info(kv_api.ConfigInfo):
        policy: str
        limit: int | None = None

    assert Info.config_info_keys() == ("policy", "limit")
    assert Info("lru").as_config_info() == {"policy": "lru", "limit": "None"}
    assert Info("lru", 3).as_config_info() == {"policy": "lru", "limit": 3}
    assert Info("", 0).as_config_info() == {"policy": "", "limit": 0}


def test_writers_of_a_page_take_turns() -> None:
    run = kv_api.CopyRun(0, 0, 8, 2, 8, 16)
    mappings = [kv_api.CanonicalPageMapping(32, 16, (run,), 3, index, True) for index in range(3)]
    for block in range(20):
        assert [mapping.is_writer(block) for mapping in mappings].count(True) == 1


def test_a_medium_has_no_settings_until_it_names_them() -> None:
    assert kv_api.OffloadingSpec.extra_keys == frozenset()


def test_a_medium_is_made_with_an_offloading_config() -> None:
    class Medium(kv_api.OffloadingSpec):
        def get_manager(self) -> Any: ...
        def get_worker(self, kv_caches: Any) -> Any: ...

    for config, name in ((None, "NoneType"), ({"extra_config": {}}, "dict")):
        with pytest.raises(kv_api.ConfigError, match=f"^Medium needs an OffloadingConfig, got a {name}$"):
            Medium(config)  # type: ignore[arg-type]
