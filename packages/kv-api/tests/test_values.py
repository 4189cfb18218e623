"""Events, stats, keys, specs, tiers, layouts and errors: small values with exact rules."""

import inspect
import pickle
from dataclasses import FrozenInstanceError, fields
from enum import Enum
from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kv_api
from kv_api import CacheHitSource, Locality, Medium, TierFilter, TierMatcher
from kv_api.errors import nearest_name, refuse_misspelt, unknown_name
from kv_api.stats import CountedStats


def stored(**changes: Any) -> kv_api.BlockStored:
    values: dict[str, Any] = {
        "block_hashes": [b"h"],
        "parent_block_hash": None,
        "token_ids": [1],
        "block_size": 1,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
    }
    return kv_api.BlockStored(**{**values, **changes})


CHANGES: list[dict[str, Any]] = [
    {"block_hashes": [b"i"]},
    {"parent_block_hash": b"p"},
    {"token_ids": [2]},
    {"block_size": 2},
    {"lora_name": "l"},
    {"medium": "CPU"},
    {"extra_keys": [("salt",)]},
    {"group_idx": 1},
    {"locality": "LOCAL"},
    {"ownership": "fs"},
    {"session_id": "s"},
    {"lookahead_token_ids": [[3]]},
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: next(iter(change)))
def test_events_are_equal_only_in_every_field(change: dict[str, Any]) -> None:
    assert stored() == stored()
    assert hash(stored()) == hash(stored())
    assert stored(**change) != stored()
    assert len({stored(), stored(), stored(**change)}) == 2


def test_an_event_says_nothing_of_what_its_writer_left_out() -> None:
    needed = {"block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name"}
    for event in (stored(), kv_api.BlockRemoved([b"h"], "GPU")):
        assert {value for name, value in vars(event).items() if name not in needed} == {None}


def test_only_events_of_every_worker_are_common() -> None:
    gone = kv_api.BlockRemoved([b"h"], "GPU")
    aggregator = kv_api.KVEventAggregator(2)
    aggregator.add_events([stored(), gone])
    aggregator.add_events([stored(), kv_api.AllBlocksCleared()])
    assert aggregator.get_common_events() == [stored()]
    assert len(aggregator.get_all_events()) == 4
    aggregator.increment_workers()
    assert (aggregator.get_number_of_workers(), aggregator.get_common_events()) == (3, [])
    assert repr(aggregator) == "<KVEventAggregator workers=3 events=3>"
    aggregator.reset_workers()
    assert aggregator.get_common_events() == [gone, kv_api.AllBlocksCleared()]
    aggregator.increment_workers()
    aggregator.clear_events()
    assert (aggregator.get_all_events(), aggregator.get_number_of_workers()) == ([], 2)


def test_the_event_aggregator_refuses_nonsense() -> None:
    with pytest.raises(ValueError, match=r"^num_workers: expected at least 1, got 0$"):
        kv_api.KVEventAggregator(0)
    aggregator = kv_api.KVEventAggregator(1)
    for count in (-1, 0):
        with pytest.raises(ValueError, match=rf"^count: expected at least 1, got {count}$"):
            aggregator.increment_workers(count)
    wrong: Any = ()
    with pytest.raises(TypeError, match=r"^events: expected a list, got \(\) \(tuple\)$"):
        aggregator.add_events(wrong)


def test_containers_of_events_merge() -> None:
    class Container(kv_api.KVConnectorKVEvents):
        def __init__(self, events: list[kv_api.KVCacheEvent]) -> None:
            self.aggregator = kv_api.KVEventAggregator(1)
            self.add_events(events)

        def add_events(self, events: list[kv_api.KVCacheEvent]) -> None:
            self.aggregator.add_events(events)

        def aggregate(self) -> kv_api.KVConnectorKVEvents:
            return self

        def increment_workers(self, count: int = 1) -> None:
            self.aggregator.increment_workers(count)

        def get_all_events(self) -> list[kv_api.KVCacheEvent]:
            return self.aggregator.get_all_events()

        def get_number_of_workers(self) -> int:
            return self.aggregator.get_number_of_workers()

        def clear_events(self) -> None:
            self.aggregator.clear_events()

    merged = Container([stored()]).merge(Container([stored(), kv_api.AllBlocksCleared()]))
    assert merged.get_all_events() == [stored(), stored(), kv_api.AllBlocksCleared()]


def test_stats_must_say_what_they_do() -> None:
    stats = kv_api.KVConnectorStats()
    assert stats.to_dict() == {}
    for call, what in (
        (stats.reset, "how it is reset"),
        (stats.reduce, "how it is reduced"),
        (stats.is_empty, "when it is empty"),
        (lambda: stats.aggregate(stats), "how it is aggregated"),
    ):
        with pytest.raises(NotImplementedError, match=rf"^KVConnectorStats must say {what}$"):
            call()


def test_prom_metrics_take_the_classes_of_the_engine() -> None:
    class Gauge: ...

    class Counter: ...

    class Histogram: ...

    class EngineGauge: ...

    class Metrics(kv_api.KVConnectorPromMetrics):
        def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None: ...

    config: Any = SimpleNamespace(kv_transfer_config="transfer")
    types = {Gauge: EngineGauge, Counter: Counter, Histogram: Histogram}
    metrics = Metrics(config, types, ["engine"], {0: ["0"]})
    assert (metrics._gauge_cls, metrics._counter_cls, metrics._histogram_cls) == (EngineGauge, Counter, Histogram)
    assert (metrics._labelnames, metrics.per_engine_labelvalues) == (["engine"], {0: ["0"]})


def test_hit_sources_are_ordered_from_the_accelerator_outwards() -> None:
    assert CacheHitSource.outermost([CacheHitSource.DISK, CacheHitSource.HOST]) is CacheHitSource.DISK
    assert CacheHitSource.outermost(CacheHitSource) is CacheHitSource.EXTERNAL_UNSPECIFIED
    assert CacheHitSource("host") is CacheHitSource.HOST


@given(st.binary(max_size=40), st.integers(0, 2**32 - 1))
def test_keys_take_hash_and_group_apart_again(block_hash: bytes, group: int) -> None:
    key = kv_api.make_offload_key(block_hash, group)
    assert kv_api.get_offload_block_hash(key) == block_hash
    assert kv_api.get_offload_group_idx(key) == group


@given(st.lists(st.tuples(st.binary(min_size=4, max_size=4), st.integers(0, 3))))
def test_keys_are_different_when_hash_or_group_is(pairs: list[tuple[bytes, int]]) -> None:
    assert len({kv_api.make_offload_key(*pair) for pair in pairs}) == len(set(pairs))


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


@pytest.mark.parametrize(("sizes", "indices"), [([1], [0]), ([2], [0, 3]), ([1, 1], [5])])
def test_a_gpu_spec_whose_numbers_do_not_fit_is_refused(sizes: list[int], indices: list[int]) -> None:
    with pytest.raises(ValueError, match="blocks") as caught:
        kv_api.GPULoadStoreSpec([1, 2], sizes, indices)
    assert str(caught.value) == f"2 blocks don't fit group_sizes {sizes} with block_indices {indices}"


def test_places_of_another_medium_are_others() -> None:
    class Elsewhere(kv_api.BlockIDsLoadStoreSpec):
        pass

    assert Elsewhere([1]) == Elsewhere([1])
    assert Elsewhere([1]) != kv_api.BlockIDsLoadStoreSpec([1])


NAMES: dict[type[Enum], list[object]] = {
    kv_api.AttentionKind: ["full_attention", "sliding_window", "state_space"],
    CacheHitSource: ["device", "host", "p2p", "disk", "external_unspecified"],
    kv_api.KVConnectorRole: [0, 1],
    Locality: ["LOCAL", "REMOTE"],
    Medium: ["CPU", "STORAGE"],
    kv_api.OffloadPolicy: ["chunk_level", "request_level"],
}


@pytest.mark.parametrize("kind", NAMES, ids=lambda kind: kind.__name__)
def test_names_that_configurations_events_and_metrics_have(kind: type[Enum]) -> None:
    assert [member.value for member in kind] == NAMES[kind]
    assert (kv_api.MEDIUM_GPU, kv_api.MEDIUM_CPU, kv_api.MEDIUM_STORAGE) == ("GPU", "CPU", "STORAGE")


def test_defaults_of_what_a_medium_is_told() -> None:
    config = offloading_config()
    assert (config.replicated_layout, config.canonical_layout, config.kv_cache_layout) == (False, False, None)
    assert config.model.max_model_len == 0
    assert config.groups[0].sliding_window_size_in_chunks is None
    assert kv_api.OffloadingGaugeMetadata("text").multiprocess_mode == "mostrecent"
    success = inspect.signature(kv_api.OffloadingManager.complete_store).parameters["success"]
    assert success.default is True


def test_defaults_of_values_that_a_medium_makes_and_gets() -> None:
    event = kv_api.OffloadingEvent([], Medium.CPU, removed=True)
    assert vars(event) == {
        "keys": [],
        "medium": Medium.CPU,
        "removed": True,
        "locality": None,
        "ownership": None,
        "removal_expected": False,
        "metadata_only": False,
    }
    assert vars(kv_api.TransferResult(1, True)) == {
        "job_id": 1,
        "success": True,
        "transfer_size": None,
        "transfer_time": None,
    }
    assert kv_api.OffloadingHistogramMetadata("text") == kv_api.OffloadingHistogramMetadata("text", (), None)
    assert kv_api.CanonicalKVCacheRef(0, 64).mapping is None
    context = kv_api.ReqContext("r")
    assert (context.kv_transfer_params, context.kv_hints) == (None, None)
    assert context.load_tier_filter is TierFilter.ALL


@pytest.mark.parametrize(
    ("method", "name", "default"),
    [
        (kv_api.OffloadingWorker.submit_load, "expedited", False),
        (kv_api.KVConnectorPromMetrics.observe, "engine_idx", 0),
        (kv_api.KVConnectorKVEvents.increment_workers, "count", 1),
        (kv_api.KVConnectorBase_V1.build_kv_connector_stats, "data", None),
    ],
    ids=["submit_load", "observe", "increment_workers", "build_kv_connector_stats"],
)
def test_what_callers_of_other_peoples_classes_may_leave_out(method: Any, name: str, default: object) -> None:
    assert inspect.signature(method).parameters[name].default is default


def test_values_that_many_share_do_not_change() -> None:
    config = offloading_config()
    run = kv_api.CopyRun(0, 0, 8, 2, 8, 16)
    shared: list[Any] = [
        config,
        config.groups[0],
        config.model,
        config.cache,
        config.parallel,
        kv_api.OffloadingKVEventsConfig(True, False),
        kv_api.OffloadingCounterMetadata("text"),
        TierFilter.ALL,
        run,
        kv_api.CanonicalPageMapping(32, 16, (run,), 3, 0, True),
    ]
    for value in shared:
        name = fields(value)[0].name
        with pytest.raises(FrozenInstanceError, match=name):
            setattr(value, name, None)
    assert hash(kv_api.AllBlocksCleared()) == hash(kv_api.AllBlocksCleared())


@pytest.mark.parametrize(
    ("matcher", "medium", "locality", "allowed"),
    [
        (TierMatcher(), Medium.CPU, Locality.LOCAL, True),
        (TierMatcher(Medium.CPU), Medium.CPU, None, True),
        (TierMatcher(Medium.CPU), Medium.STORAGE, None, False),
        (TierMatcher(Medium.CPU), None, Locality.REMOTE, True),
        (TierMatcher(Medium.STORAGE, Locality.LOCAL), Medium.STORAGE, Locality.REMOTE, False),
        (TierMatcher(None, Locality.LOCAL), Medium.STORAGE, Locality.LOCAL, True),
        (TierMatcher(Medium.CPU, Locality.LOCAL), Medium.CPU, None, True),
        (TierMatcher(Medium.CPU, Locality.LOCAL), None, Locality.REMOTE, False),
    ],
)
def test_tier_filters(matcher: TierMatcher, medium: Any, locality: Any, allowed: bool) -> None:
    assert matcher.matches(medium, locality) is allowed
    assert TierFilter((matcher,)).allows(medium, locality) is allowed
    assert TierFilter().allows(medium, locality) is False
    assert TierFilter.ALL.allows(medium, locality) is True


def test_a_request_context_keeps_state_by_type_and_positions_by_key() -> None:
    context = kv_api.ReqContext("r")
    key = kv_api.make_offload_key(b"h", 0)
    assert context.get_state(int) is None
    assert context.get_offload_key_position(key) is None
    context.set_state(7)
    context.set_state("text")
    context.set_offload_key_position(key, 64)
    assert (context.get_state(int), context.get_state(str)) == (7, "text")
    assert context.get_offload_key_position(key) == 64
    assert kv_api.ReqContext("r").get_state(int) is None


def test_a_request_context_is_made_and_printed_without_what_it_keeps() -> None:
    made = [*inspect.signature(kv_api.ReqContext).parameters]
    assert made == ["req_id", "kv_transfer_params", "kv_hints", "load_tier_filter"]
    context = kv_api.ReqContext("r")
    before = repr(context)
    context.set_state(7)
    context.set_offload_key_position(kv_api.make_offload_key(b"h", 0), 64)
    context.derive_offload_key_positions([kv_api.make_offload_key(b"i", 0)], 16)
    assert repr(context) == before


def test_positions_of_chunks_in_a_row_are_derived() -> None:
    context = kv_api.ReqContext("r")
    first, second = ([kv_api.make_offload_key(b"h%d" % number, group) for number in range(4)] for group in (0, 1))
    growing = first[:2]
    context.set_offload_key_position(first[1], 7)
    context.derive_offload_key_positions(growing, 16)
    context.derive_offload_key_positions(second, 32)
    assert [context.get_offload_key_position(key) for key in first] == [16, 7, None, None]  # what was set stays
    assert [context.get_offload_key_position(key) for key in second] == [32, 64, 96, 128]
    growing += first[2:]
    assert [context.get_offload_key_position(key) for key in first] == [16, 7, 48, 64]
    context.set_offload_key_position(first[2], 9)
    assert context.get_offload_key_position(first[2]) == 9


@pytest.mark.parametrize("has_others", [False, True])
def test_positions_of_many_chunks_are_found_from_wherever_one_asks(has_others: bool) -> None:
    keys = [kv_api.make_offload_key(b"%d" % number, 0) for number in range(5000)]
    others = [kv_api.make_offload_key(b"%d" % number, 1) for number in range(5000)]
    for places in (range(5000), range(4999, -1, -1), range(0, 5000, 1023), range(0, 5000, 1025), (4000, 3999, 7)):
        context = kv_api.ReqContext("r")
        context.set_offload_key_position(keys[3999], 5)
        context.derive_offload_key_positions(keys, 16)
        if has_others:
            context.derive_offload_key_positions(others, 32)
        for place in places:
            assert context.get_offload_key_position(keys[place]) == (5 if place == 3999 else 16 * (place + 1))
            assert context.get_offload_key_position(others[place]) == (32 * (place + 1) if has_others else None)
        assert context.get_offload_key_position(kv_api.make_offload_key(b"no such", 0)) is None
    context, growing = kv_api.ReqContext("r"), keys[:2000]
    context.derive_offload_key_positions(growing, 16)
    if has_others:
        context.derive_offload_key_positions(others, 32)
    for place, count in ((1999, 2000), (3, 4000), (2000, 4000), (3999, 4000), (0, 5000), (4998, 5000)):
        growing += keys[len(growing) : count]
        assert context.get_offload_key_position(keys[place]) == 16 * (place + 1)


@pytest.mark.parametrize("step", [3, 900, 5000])
def test_no_position_is_noted_while_a_request_grows(step: int) -> None:
    context, growing = kv_api.ReqContext("r"), list[kv_api.OffloadKey]()
    context.derive_offload_key_positions(growing, 16)
    for known in range(0, min(50_000, 300 * step), step):
        growing += [kv_api.make_offload_key(b"%d" % number, 0) for number in range(known, known + step)]
        for place in (known - 1, known)[not known :]:
            assert context.get_offload_key_position(growing[place]) == 16 * (place + 1)
    assert context.get_offload_key_position(growing[known + 2]) == 16 * (known + 3)
    assert context._key_positions == {}


class Searched(list[kv_api.OffloadKey]):
    """Counts searches."""

    searches = 0

    def index(self, *arguments: Any) -> int:
        self.searches += 1
        return super().index(*arguments)


@pytest.mark.parametrize("step", [1, 2, 128])
def test_that_a_request_goes_on_where_it_was_is_seen_without_a_search(step: int) -> None:
    context, growing = kv_api.ReqContext("r"), Searched()
    context.derive_offload_key_positions(growing, 16)
    for known in range(0, 20 * step, step):
        growing += [kv_api.make_offload_key(b"%d" % number, 0) for number in range(known, known + step)]
        if known:
            assert context.is_offload_key_before(growing[known], growing[known - 1]) is False
            assert growing.searches == (step > 1)
    assert context.get_offload_key_position(growing[known + step // 2]) == 16 * (known + step // 2 + 1)
    assert context._key_positions == {}


def test_of_a_request_that_nobody_knows_no_key_is_before_another() -> None:
    key, other = (kv_api.make_offload_key(b"%d" % number, 0) for number in range(2))
    assert kv_api.ReqContext("r").is_offload_key_before(key, other) is False


@pytest.mark.parametrize("end_of_second", [None, 5, 90])
@pytest.mark.parametrize("has_others", [False, True])
def test_which_key_is_before_another_follows_from_their_positions(
    has_others: bool, end_of_second: int | None
) -> None:
    """Whatever was asked before the request grew."""
    keys = [kv_api.make_offload_key(b"%d" % number, 0) for number in range(4)]
    pairs = [*product(keys, keys)]
    for before, asked, now, (key, other) in product(range(1, 5), [None, *pairs], range(1, 5), pairs):
        context, growing = kv_api.ReqContext("r"), keys[:before]
        context.derive_offload_key_positions(growing, 16)
        if has_others:
            context.derive_offload_key_positions([kv_api.make_offload_key(b"0", 1)], 48)
        if asked is not None:
            context.is_offload_key_before(*asked)
        growing += keys[before:now]
        ends = {key: 16 * (place + 1) for place, key in enumerate(growing)}
        if end_of_second is not None:
            context.set_offload_key_position(keys[1], end_of_second)
            ends[keys[1]] = end_of_second
        expected = key in ends and other in ends and ends[key] < ends[other]
        assert context.is_offload_key_before(key, other) is expected, (before, asked, now, key, other)


class Keys(list[kv_api.OffloadKey]):
    """Counts what is read of them in bulk."""

    read = 0

    def __getitem__(self, place: Any) -> Any:
        found = super().__getitem__(place)
        self.read += len(found) if isinstance(place, slice) else 0
        return found


def test_keys_of_several_groups_are_noted_once_as_they_come() -> None:
    context, growing = kv_api.ReqContext("r"), Keys()
    others = Keys(kv_api.make_offload_key(b"%d" % number, 1) for number in range(3))
    context.derive_offload_key_positions(growing, 16)
    context.derive_offload_key_positions(others, 32)
    assert context._key_positions == {}
    for count in (2, 3, 7):
        growing += [kv_api.make_offload_key(b"%d" % number, 0) for number in range(len(growing), count)]
        expected = dict(zip([*growing, *others], [*range(16, 16 * count + 1, 16), 32, 64, 96], strict=True))
        assert context.get_offload_key_position(growing[-1]) == 16 * count
        assert context.get_offload_key_position(kv_api.make_offload_key(b"no such", 0)) is None
        assert context._key_positions == expected
    assert (growing.read, others.read) == (7, 3)


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


def offloading_config(**extra: Any) -> kv_api.OffloadingConfig:
    return kv_api.OffloadingConfig(
        groups=(kv_api.OffloadingGroupConfig(16, ("l0",), 0), kv_api.OffloadingGroupConfig(32, ("l1",), 1)),
        worker_kv_bytes_per_block=1024,
        enable_kv_cache_events=True,
        extra_config=extra,
        engine_id="e",
        model=kv_api.OffloadingModelConfig("m", "float16"),
        cache=kv_api.OffloadingCacheConfig(tokens_per_hash=16, blocks_per_chunk=2),
        parallel=kv_api.OffloadingParallelConfig(0, 1, 1, 1, 1, 1, 0, 1, None, False),
    )


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


@pytest.mark.parametrize(
    ("value", "known", "text"),
    [
        ("lruu", ["lru", "arc"], "unknown policy 'lruu'; known: arc, lru; did you mean 'lru'?"),
        ("LRU", ["lru", "arc"], "unknown policy 'LRU'; known: arc, lru; did you mean 'lru'?"),
        ("zzz", ["lru"], "unknown policy 'zzz'; known: lru"),
        ("x", [], "unknown policy 'x'; known: none"),
        (3, ["lru"], "unknown policy 3; known: lru"),
    ],
)
def test_an_unknown_name_lists_the_known_ones_and_the_nearest(value: object, known: list[str], text: str) -> None:
    assert unknown_name("policy", value, known) == text
    assert unknown_name("policy", value, known, hint="see there") == f"{text}; see there"


def test_no_name_is_near_to_something_that_is_no_name() -> None:
    assert nearest_name(None, ["None"]) is None


TWENTY = "abcdefghijklmnopqrst"


@pytest.mark.parametrize(
    "key",
    [
        "hold_block",
        "hold_blcoks",
        "Hold_Blocks",
        "hold-blocks",
        f"my_{TWENTY[:19]}",
        "sav",
        "saved",
        f"{TWENTY[:17]}---",
    ],
)
def test_a_key_that_is_nearly_known_is_refused(key: str) -> None:
    known = {"save", "hold_blocks", TWENTY}
    meant = nearest_name(key, known)
    told = f"extra: unknown key {key!r}; known: {TWENTY}, hold_blocks, save; did you mean {meant!r}?"
    for hint, end in (("", ""), ("see there", "; see there")):
        with pytest.raises(kv_api.ConfigError) as refused:
            refuse_misspelt({"save": 1, key: 2}, known, where="extra", hint=hint)
        assert str(refused.value) == told + end


@pytest.mark.parametrize(
    "key", ["save", "hold_blocks", "swap", "hold", "my_hold_blocks", "hold_blocks_s", f"{TWENTY[:16]}----", 7]
)
def test_a_key_that_is_known_or_far_from_that_is_let_be(key: object) -> None:
    refuse_misspelt([key], ("save", "hold_blocks", TWENTY), where="extra")
    refuse_misspelt([key], (), where="extra")


@pytest.mark.parametrize(("key", "meant"), [("prot", "port"), ("hots", "host"), ("Svae", "save")])
def test_letters_in_another_order_are_a_slip(key: str, meant: str) -> None:
    known = ("port", "host", "save", "hold_blocks")
    with pytest.raises(kv_api.ConfigError) as refused:
        refuse_misspelt([key], known, where="extra")
    assert (
        str(refused.value)
        == f"extra: unknown key {key!r}; known: hold_blocks, host, port, save; did you mean {meant!r}?"
    )


def test_a_known_key_is_never_taken_for_another_that_is_written_alike() -> None:
    refuse_misspelt(["Save", "save"], ("Save", "save"), where="extra")


def test_without_a_hint_the_error_ends_with_the_nearest_key() -> None:
    with pytest.raises(kv_api.ConfigError, match=r"; did you mean 'hold_blocks'\?$"):
        refuse_misspelt(["hold_block"], ("hold_blocks",), where="extra")


def test_a_medium_has_no_settings_until_it_names_them() -> None:
    assert kv_api.OffloadingSpec.extra_keys == frozenset()


class Counted(CountedStats):
    levels = ("level",)


def test_counted_stats_add_up() -> None:
    stats, other = Counted(), Counted({"sum": 2, "level": 5, "samples": [3]})
    assert stats.is_empty() and stats.reduce() == {}
    assert stats.aggregate(other) is stats
    stats.aggregate(Counted({"sum": 1, "level": 4, "samples": [1, 2]}))
    stats.add("sum", 4)
    assert stats.data == {"sum": 7, "level": 4, "samples": [3, 1, 2]}
    assert other.data == {"sum": 2, "level": 5, "samples": [3]}
    assert stats.reduce() == {"sum": 7, "level": 4, "samples_count": 3, "samples_sum": 6}
    assert not stats.is_empty()
    stats.reset()
    assert stats.is_empty() and stats.data == {}
    assert CountedStats.levels == ()
    with pytest.raises(TypeError, match=r"^stats: expected Counted, got CountedStats$"):
        stats.aggregate(CountedStats())
