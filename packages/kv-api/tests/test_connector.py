"""The base classes: what they refuse, what they answer by default, and the two sides."""

import inspect
from enum import Enum
from types import SimpleNamespace
from typing import Any

import pytest

import kv_api
from kv_api import CacheHitSource, KVConnectorRole
from kv_api.contract import CONTRACT, Kind, Side

SCHEDULER, WORKER = KVConnectorRole.SCHEDULER, KVConnectorRole.WORKER


def make_config(**transfer: Any) -> Any:
    """A configuration that fits ``VllmConfig``."""
    values = {"kv_connector": "Fake", "kv_role": "kv_both", **transfer}
    return SimpleNamespace(kv_transfer_config=kv_api.KVTransferConfig(**values))


class Meta(kv_api.KVConnectorMetadata):
    """Metadata of a step."""


class FakeScheduler(kv_api.SchedulerSide):
    """The smallest scheduler's side."""

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        return 0, False

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        pass

    def build_connector_meta(self, scheduler_output: Any) -> kv_api.KVConnectorMetadata:
        return Meta()


class FakeWorker(kv_api.WorkerSide):
    """The smallest worker's side."""

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        pass

    def wait_for_layer_load(self, layer_name: str) -> None:
        pass

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        pass

    def wait_for_save(self) -> None:
        pass


class OneClassConnector(FakeScheduler, FakeWorker, kv_api.KVConnectorBase_V1):
    """A connector in vLLM's classic form: one class with all methods."""


class TwoClassConnector(kv_api.TwoSidedConnector):
    """The same as two sides."""

    scheduler_class = FakeScheduler
    worker_class = FakeWorker


@pytest.fixture(params=[OneClassConnector, TwoClassConnector])
def connector_class(request: pytest.FixtureRequest) -> Any:
    return request.param


def test_an_incomplete_connector_cannot_be_made() -> None:
    class Incomplete(kv_api.KVConnectorBase_V1):
        pass

    with pytest.raises(TypeError, match="abstract"):
        Incomplete(make_config(), SCHEDULER)  # type: ignore[abstract]


@pytest.mark.parametrize("config", [None, SimpleNamespace(), SimpleNamespace(kv_transfer_config=None)])
def test_a_connector_needs_a_transfer_config(config: Any, connector_class: Any) -> None:
    with pytest.raises(kv_api.ConfigError, match=f"{connector_class.__name__} needs a kv_transfer_config"):
        connector_class(config, SCHEDULER, None)


def test_two_and_three_arguments_both_work(connector_class: Any) -> None:
    cache = SimpleNamespace(kv_cache_groups=[1, 2])
    assert connector_class(make_config(), SCHEDULER).role is SCHEDULER
    connector = connector_class(vllm_config=make_config(), role=SCHEDULER, kv_cache_config=cache)
    assert connector.get_loaded_kv_cache_group_ids(None) == (0, 1)


SCHEDULER_DEFAULTS: dict[str, tuple[tuple[Any, ...], Any]] = {
    "get_finished_count": ((), None),
    "set_xfer_handshake_metadata": (({},), None),
    "set_xfer_handshake_metadata_pp_aware": (({},), None),
    "bind_gpu_block_pool": ((None,), None),
    "on_new_request": ((None,), None),
    "update_connector_output": ((kv_api.KVConnectorOutput(),), None),
    "take_events": ((), ()),
    "get_kv_connector_stats": ((), None),
    "request_finished": ((None, [1]), (False, None)),
    "register_finished_partial_tail": ((None, ([1],), [(0, 0, 3)]), False),
    "has_pending_push_work": ((), False),
    "has_pending_block_frees": ((), False),
    "reset_cache": ((), None),
    "shutdown": ((), None),
    "get_external_cache_hit_sources": ((None, 0), {}),
}
WORKER_DEFAULTS: dict[str, tuple[tuple[Any, ...], Any]] = {
    "get_mem_pool_context": ((), None),
    "register_kv_caches": (({},), None),
    "unregister_kv_caches": ((), None),
    "restore_kv_caches": ((), None),
    "set_host_xfer_buffer_ops": ((None,), None),
    "get_handshake_metadata": ((), None),
    "handle_preemptions": ((Meta(),), None),
    "finish_forward": ((), None),
    "reset_capture_state": ((), None),
    "get_finished": (({"a"},), (None, None)),
    "get_transfer_results": (({"a"},), kv_api.KVConnectorTransferResults()),
    "get_block_ids_with_load_errors": ((), set()),
    "get_kv_connector_stats": ((), None),
    "get_kv_connector_kv_cache_events": ((), None),
    "build_connector_worker_meta": ((), None),
    "shutdown": ((), None),
}


@pytest.mark.parametrize(
    ("role", "name"),
    [(SCHEDULER, name) for name in SCHEDULER_DEFAULTS] + [(WORKER, name) for name in WORKER_DEFAULTS],
)
def test_what_is_not_overridden_answers_its_default(
    connector_class: Any, role: KVConnectorRole, name: str
) -> None:
    args, expected = (SCHEDULER_DEFAULTS if role is SCHEDULER else WORKER_DEFAULTS)[name]
    assert getattr(connector_class(make_config(), role), name)(*args) == expected


def test_defaults_of_the_class(connector_class: Any) -> None:
    assert connector_class.get_required_kvcache_layout(make_config()) is None
    assert connector_class.requires_piecewise_for_cudagraph({}) is False
    assert connector_class.supports_sleep_mode(make_config().kv_transfer_config) is True
    assert connector_class.build_kv_connector_stats() is None
    assert connector_class.build_prom_metrics(make_config(), {}, [], {}) is None
    with pytest.raises(TypeError, match="base") as caught:
        kv_api.KVConnectorBase_V1.get_required_kvcache_layout(make_config())
    assert str(caught.value) == "get_required_kvcache_layout is for connector classes, not for their base"


@pytest.mark.parametrize(("role", "required"), [("kv_producer", True), ("kv_consumer", False), ("kv_both", True)])
def test_producers_require_delivery(connector_class: Any, role: str, required: bool) -> None:
    connector = connector_class(make_config(kv_role=role), SCHEDULER)
    assert connector.requires_kv_delivery is required
    assert connector.supports_divergent_local_hybrid_hits is False


def test_external_hits_are_counted_under_the_source_of_the_class() -> None:
    class FromDisk(FakeScheduler):
        _cache_hit_source = CacheHitSource.DISK

    request: Any = None
    assert FakeScheduler(make_config()).get_external_cache_hit_sources(request, 7) == {
        CacheHitSource.EXTERNAL_UNSPECIFIED: 7
    }
    assert FromDisk(make_config()).get_external_cache_hit_sources(request, 7) == {CacheHitSource.DISK: 7}


def test_loaded_groups_are_the_prefix_cacheable_ones(connector_class: Any) -> None:
    cache = SimpleNamespace(kv_cache_groups=[1, 2, 3], prefix_cacheable_group_ids=(0, 2))
    assert connector_class(make_config(), SCHEDULER, cache).get_loaded_kv_cache_group_ids(None) == (0, 2)
    cache.prefix_cacheable_group_ids = ()
    assert connector_class(make_config(), SCHEDULER, cache).get_loaded_kv_cache_group_ids(None) == ()
    connector = connector_class(make_config(), SCHEDULER)
    with pytest.raises(RuntimeError, match="created without a kv_cache_config") as caught:
        connector.get_loaded_kv_cache_group_ids(None)
    assert str(caught.value) == (
        f"{type(getattr(connector, 'side', connector)).__name__} was created without a kv_cache_config: its "
        "__init__ has to take one and pass it to super().__init__, or the class has to override "
        "get_loaded_kv_cache_group_ids"
    )


@pytest.mark.parametrize("side_class", [FakeScheduler, FakeWorker])
def test_a_half_keeps_what_it_is_made_of(side_class: Any) -> None:
    config, cache = make_config(), SimpleNamespace()
    half = side_class(config, cache)
    assert half._vllm_config is config
    assert half._kv_transfer_config is config.kv_transfer_config
    assert half._kv_cache_config is cache
    assert side_class(config)._kv_cache_config is None


def test_the_cache_manager_hands_its_pool_on(connector_class: Any) -> None:
    seen = []

    class Watcher(FakeScheduler):
        def bind_gpu_block_pool(self, gpu_block_pool: Any) -> None:
            seen.append((gpu_block_pool, self._kv_cache_manager))

    class Connector(kv_api.TwoSidedConnector):
        scheduler_class = Watcher
        worker_class = FakeWorker

    manager: Any = SimpleNamespace(block_pool="the pool")
    connector = Connector(make_config(), SCHEDULER)
    side: Any = connector.side
    assert side._kv_cache_manager is None
    connector.bind_kv_cache_manager(manager)
    assert seen == [("the pool", manager)]
    assert side._kv_cache_manager is manager


@pytest.mark.parametrize("role", [SCHEDULER, WORKER])
def test_a_half_may_be_made_of_more(role: kv_api.KVConnectorRole) -> None:
    made: list[Any] = []

    class Connector(TwoClassConnector):
        def build_side(self, side_class: Any, vllm_config: Any, kv_cache_config: Any) -> Any:
            made.append((side_class, vllm_config, kv_cache_config))
            return "the half"

    config, cache = make_config(), "blocks"
    connector = Connector(config, role, cache)  # type: ignore[arg-type]
    side: Any = connector.side
    assert side == "the half"
    assert connector._kv_cache_config == cache
    assert made == [(FakeScheduler if role is SCHEDULER else FakeWorker, config, cache)]


def test_metadata_is_there_only_within_a_step(connector_class: Any) -> None:
    worker = connector_class(make_config(), WORKER)
    side = getattr(worker, "side", worker)
    assert not worker.has_connector_metadata()
    meta = Meta()
    worker.bind_connector_metadata(meta)
    assert worker.has_connector_metadata()
    assert side._get_connector_metadata() is meta
    worker.clear_connector_metadata()
    assert not worker.has_connector_metadata()
    with pytest.raises(RuntimeError, match="metadata") as caught:
        side._get_connector_metadata()
    assert str(caught.value) == (
        f"{type(side).__name__} has no metadata: it is bound only between bind_connector_metadata and "
        "clear_connector_metadata"
    )


def test_transfer_results_wrap_what_get_finished_says() -> None:
    class Finishing(FakeWorker):
        answer: Any = ({"b"}, {"c", "d"})

        def get_finished(self, finished_req_ids: set[str]) -> Any:
            assert finished_req_ids == {"a"}
            return self.answer

    worker = Finishing(make_config())
    results = worker.get_transfer_results({"a"})
    assert results == kv_api.KVConnectorTransferResults({"b"}, {"c", "d"}, set())
    results.finished_sending.clear()
    results.finished_recving.clear()
    assert worker.answer == ({"b"}, {"c", "d"}), "the sets are the connector's own"
    worker.answer = None, {"c"}
    assert worker.get_transfer_results({"a"}) == kv_api.KVConnectorTransferResults(set(), {"c"}, set())
    worker.answer = [{"d"}, None]
    assert worker.get_transfer_results({"a"}) == kv_api.KVConnectorTransferResults({"d"}, set(), set())
    worker.answer = ["d"], False  # which vLLM's engine takes for none
    assert worker.get_transfer_results({"a"}) == kv_api.KVConnectorTransferResults({"d"}, set(), set())


@pytest.mark.parametrize(
    "answer",
    [None, {"r"}, ({"r"}, {"s"}, set()), ("r1", None), (None, "r1"), "ab", [set()], (True, None), ({"r"}, 1)],
)
def test_what_get_finished_may_not_say_is_told_by_its_name(answer: object) -> None:
    class Finishing(FakeWorker):
        def get_finished(self, finished_req_ids: set[str]) -> Any:
            return answer

    with pytest.raises(TypeError) as caught:
        Finishing(make_config()).get_transfer_results({"a"})
    assert str(caught.value) == (
        f"Finishing.get_finished answered {answer!r}, expected a pair of sets: the ids of requests whose store "
        "ended, and of those whose load ended; None stands for an empty set"
    )


def test_handshake_of_a_later_pipeline_stage_is_refused_by_default(connector_class: Any) -> None:
    taken = {}

    class Taking(FakeScheduler):
        def set_xfer_handshake_metadata(self, metadata: dict[int, Any]) -> None:
            taken.update(metadata)

    first, second = (kv_api.KVConnectorHandshakeMetadata() for _ in range(2))
    Taking(make_config()).set_xfer_handshake_metadata_pp_aware({(0, 0): first, (0, 1): second})
    assert taken == {0: first, 1: second}
    with pytest.raises(ValueError, match="pipeline") as caught:
        Taking(make_config()).set_xfer_handshake_metadata_pp_aware({(2, 0): first, (0, 0): first, (1, 1): second})
    assert str(caught.value) == (
        "Taking got handshake metadata of (pp_rank, tp_rank) [(1, 1), (2, 0)] but does not override "
        "set_xfer_handshake_metadata_pp_aware, so it supports pipeline rank 0 only"
    )


# -- two sides ----------------------------------------------------------------------------------


class Recorder:
    """Stands for a half and notes what it is asked."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []

    def __getattr__(self, name: str) -> Any:
        def method(*args: Any, **kwargs: Any) -> str:
            self.calls.append((name, args, kwargs))
            return f"answer of {name}"

        return method


@pytest.mark.parametrize(
    "row", [r for r in CONTRACT if r.side is not Side.CLASS and r.name != "role"], ids=lambda r: r.name
)
def test_each_call_reaches_the_half_it_belongs_to_and_no_other(row: Any) -> None:
    """Also fails when the base class grows a method that the halves' connector doesn't hand on."""
    for role in (SCHEDULER, WORKER):
        connector = TwoClassConnector(make_config(), role)
        recorder: Any = Recorder()
        setattr(connector, "_scheduler" if role is SCHEDULER else "_worker", recorder)
        member = inspect.getattr_static(kv_api.KVConnectorBase_V1, row.name)
        here = row.side is Side.BOTH or (row.side is Side.SCHEDULER) == (role is SCHEDULER)
        if row.kind is Kind.PROPERTY:
            if here:
                assert callable(getattr(connector, row.name))
            else:
                with pytest.raises(kv_api.WrongSideError, match=row.name):
                    getattr(connector, row.name)
            continue
        names = [p for p in inspect.signature(member).parameters if p not in ("self", "kwargs")]
        args = tuple(f"<{name}>" for name in names)
        if here:
            answer = getattr(connector, row.name)(*args)
            assert recorder.calls == [(row.name, args, {})]
            assert answer in (None, f"answer of {row.name}")
            returns_nothing = inspect.signature(member).return_annotation in (None, "None")
            assert (answer is None) == returns_nothing
        else:
            with pytest.raises(kv_api.WrongSideError, match=row.name):
                getattr(connector, row.name)(*args)


def test_keyword_arguments_of_the_hooks_arrive() -> None:
    connector = TwoClassConnector(make_config(), WORKER)
    recorder: Any = Recorder()
    connector._worker = recorder
    context: Any = "context"
    connector.start_load_kv(context, extra=1)
    connector.save_kv_layer("l", "kv", "attn", other=2)
    assert recorder.calls == [
        ("start_load_kv", ("context",), {"extra": 1}),
        ("save_kv_layer", ("l", "kv", "attn"), {"other": 2}),
    ]


@pytest.mark.parametrize(
    ("role", "call", "message"),
    [
        (
            SCHEDULER,
            "wait_for_save",
            "TwoClassConnector.wait_for_save belongs to the worker side, "
            "but this object was created for the scheduler side (role SCHEDULER)",
        ),
        (
            WORKER,
            "take_events",
            "TwoClassConnector.take_events belongs to the scheduler side, "
            "but this object was created for the worker side (role WORKER)",
        ),
    ],
)
def test_the_wrong_side_says_so(role: KVConnectorRole, call: str, message: str) -> None:
    with pytest.raises(kv_api.WrongSideError) as caught:
        getattr(TwoClassConnector(make_config(), role), call)()
    assert str(caught.value) == message


def test_a_role_of_somebody_elses_is_refused() -> None:
    class Role(Enum):
        SCHEDULER = 0

    role: Any = Role.SCHEDULER
    with pytest.raises(kv_api.ConfigError) as refused:
        TwoClassConnector(make_config(), role)
    assert str(refused.value) == (
        "TwoClassConnector: expected a role of kv_api.KVConnectorRole, got <Role.SCHEDULER: 0> of "
        f"{__name__}; "
        "to run it inside vLLM, wrap the class with kv_vllm.inside_vllm(TwoClassConnector)"
    )


@pytest.mark.parametrize("role", [SCHEDULER, WORKER])
@pytest.mark.parametrize("missing", ["scheduler_class", "worker_class"])
def test_a_forgotten_half_is_seen_in_every_process(role: KVConnectorRole, missing: str) -> None:
    halves = {"scheduler_class": FakeScheduler, "worker_class": FakeWorker}
    del halves[missing]
    made = type("Half", (kv_api.TwoSidedConnector,), halves)
    with pytest.raises(
        kv_api.KVError,
        match=rf"^Half has no {missing}; a TwoSidedConnector sets scheduler_class and worker_class",
    ):
        made(make_config(), role)


@pytest.mark.parametrize(("half", "kind"), [("scheduler_class", "SchedulerSide"), ("worker_class", "WorkerSide")])
@pytest.mark.parametrize("found", [dict, None, 3])
def test_a_half_of_the_wrong_kind_is_refused(half: str, kind: str, found: object) -> None:
    halves = {"scheduler_class": FakeScheduler, "worker_class": FakeWorker} | {half: found}
    with pytest.raises(kv_api.KVError) as caught:
        type("Half", (kv_api.TwoSidedConnector,), halves)(make_config(), WORKER)
    assert str(caught.value) == f"Half.{half}: expected a class derived from {kind}, got {found!r}"


def test_only_the_half_of_the_role_is_made() -> None:
    assert type(TwoClassConnector(make_config(), SCHEDULER).side) is FakeScheduler
    assert type(TwoClassConnector(make_config(), WORKER).side) is FakeWorker


def test_supports_hma_asks_objects_and_classes() -> None:
    class HMAScheduler(FakeScheduler, kv_api.SupportsHMA):
        def request_finished_all_groups(self, request: Any, block_ids: Any) -> tuple[bool, dict[str, Any] | None]:
            return True, {"request": request, "blocks": block_ids}

    class HMAConnector(kv_api.TwoSidedHMAConnector):
        scheduler_class = HMAScheduler
        worker_class = FakeWorker

    connector = HMAConnector(make_config(), SCHEDULER)
    request: Any = "a request"
    told = {"request": request, "blocks": ([1], [2])}
    assert connector.request_finished_all_groups(request, ([1], [2])) == (True, told)
    assert kv_api.supports_hma(connector)
    assert kv_api.supports_hma(HMAConnector)
    assert not kv_api.supports_hma(TwoClassConnector)
    assert not kv_api.supports_hma(TwoClassConnector(make_config(), WORKER))


def test_the_first_family_is_abstract() -> None:
    with pytest.raises(TypeError, match="abstract"):
        kv_api.KVConnectorBase(0, 0, make_config())  # type: ignore[abstract]
    assert kv_api.KVConnectorBase.__abstractmethods__ == {
        "__init__",
        "close",
        "send_kv_caches_and_hidden_states",
        "recv_kv_caches_and_hidden_states",
    }
