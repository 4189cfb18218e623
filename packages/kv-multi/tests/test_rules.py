"""Every public member of the connector interface has a rule here, stated where MultiConnector carries it out."""

import pytest
from kv_multi_scripted import Blocks, Meta, child, engine_config, request

from kv_api import (
    ConfigError,
    KVConnectorBase_V1,
    KVConnectorOutput,
    KVConnectorRole,
    SupportsHMA,
    WrongSideError,
)
from kv_api.contract import CONTRACT, HMA_CONTRACT, Kind, Side
from kv_multi import MultiConnector, MultiKVConnectorMetadata
from kv_multi.scheduler_side import MultiSchedulerSide
from kv_multi.worker_side import MultiWorkerSide

MEMBERS = (*CONTRACT, *HMA_CONTRACT)
R, BLOCKS = request(), Blocks([1])
CACHES, CONTEXT, OUTPUT = {"layer": "tensor"}, object(), "scheduler output"
METADATA = MultiKVConnectorMetadata((Meta("a"), Meta("b")))

# What each child is called with when the MultiConnector is: the same, its own slot, or by a rule tested elsewhere.
BROADCAST = {
    "bind_kv_cache_manager": ("manager",),
    "bind_gpu_block_pool": ("pool",),
    "on_new_request": (R,),
    "build_connector_meta": (OUTPUT,),
    "take_events": (),
    "request_finished": (R, [1]),
    "request_finished_all_groups": (R, ([1],)),
    "register_finished_partial_tail": (R, ([1],), [(0, 0, 3)]),
    "has_pending_push_work": (),
    "has_pending_block_frees": (),
    "reset_cache": (),
    "get_finished_count": (),
    "get_mem_pool_context": (),
    "register_kv_caches": (CACHES,),
    "unregister_kv_caches": (),
    "restore_kv_caches": (),
    "set_host_xfer_buffer_ops": (print,),
    "get_handshake_metadata": (),
    "start_load_kv": (CONTEXT,),
    "wait_for_layer_load": ("layer",),
    "save_kv_layer": ("layer", "tensor", "attention"),
    "finish_forward": (),
    "reset_capture_state": (),
    "wait_for_save": (),
    "get_transfer_results": ({"r"},),
    "get_block_ids_with_load_errors": (),
    "get_kv_connector_stats": (),
    "get_kv_connector_kv_cache_events": (),
    "build_connector_worker_meta": (),
    "clear_connector_metadata": (),
    "shutdown": (),
    "get_num_new_matched_tokens": (R, 4),
    "requires_kv_delivery": None,
    "supports_divergent_local_hybrid_hits": None,
}
BY_SLOT = ("handle_preemptions", "bind_connector_metadata")
ELSEWHERE = {
    "role": "test_its_role_and_whether_it_has_metadata_are_its_own",
    "has_connector_metadata": "test_its_role_and_whether_it_has_metadata_are_its_own",
    "get_finished": "test_saves",
    "get_loaded_kv_cache_group_ids": "test_choice",
    "update_state_after_alloc": "test_choice",
    "get_external_cache_hit_sources": "test_choice",
    "update_connector_output": "test_outputs",
    "set_xfer_handshake_metadata": "test_outputs",
    "set_xfer_handshake_metadata_pp_aware": "test_outputs",
    "get_required_kvcache_layout": "here",
    "requires_piecewise_for_cudagraph": "here",
    "supports_sleep_mode": "here",
    "build_prom_metrics": "test_prom",
    "build_kv_connector_stats": "test_stats",
}


OWNERS = {
    Side.CLASS: (MultiConnector,),
    Side.SCHEDULER: (MultiSchedulerSide,),
    Side.WORKER: (MultiWorkerSide,),
    Side.BOTH: (MultiSchedulerSide, MultiWorkerSide),
}


def public_members(*classes):
    return {name for one in classes for name in dir(one) if not name.startswith("_")}


def test_every_member_has_a_rule():
    members = public_members(KVConnectorBase_V1, SupportsHMA)
    assert {row.name for row in MEMBERS} == members
    assert {*BROADCAST, *BY_SLOT, *ELSEWHERE} == members


@pytest.mark.parametrize("name", sorted(public_members(KVConnectorBase_V1, SupportsHMA)))
def test_every_rule_is_stated(name):
    [side] = [row.side for row in MEMBERS if row.name == name]
    for owner in (
        OWNERS[side] if ELSEWHERE.get(name) != "test_its_role_and_whether_it_has_metadata_are_its_own" else ()
    ):
        ours = [cls for cls in owner.__mro__ if cls.__module__.startswith("kv_multi.") and name in vars(cls)]
        assert len(ours) == 1, f"{name}: of {owner.__name__} {ours} have a rule for it"
        assert vars(ours[0])[name].__doc__, f"{name}: its rule isn't stated"


def role_of(name):
    [side] = [row.side for row in MEMBERS if row.name == name]
    return KVConnectorRole.WORKER if side is Side.WORKER else KVConnectorRole.SCHEDULER


@pytest.mark.parametrize("name", sorted(BROADCAST))
def test_a_call_without_an_answer_reaches_each(make, name):
    multi = make([child("ScriptedHMA"), child("ScriptedHMA")], role_of(name))
    arguments = BROADCAST[name]
    if arguments is None:
        getattr(multi, name)
        arguments = ()
    else:
        getattr(multi, name)(*arguments)
    for one in multi.sub_connectors:
        assert one.calls == [(name, *arguments)]


@pytest.mark.parametrize("name", BY_SLOT)
def test_each_gets_its_slot(worker, name):
    multi, first, second = worker()
    getattr(multi, name)(METADATA)
    assert (first.calls, second.calls) == ([(name, Meta("a"))], [(name, Meta("b"))])


@pytest.mark.parametrize("on_child_error", ["raise", "quarantine"])
def test_keywords_are_handed_on(worker, on_child_error):
    multi, *children = worker(on_child_error=on_child_error)
    multi.start_load_kv(CONTEXT, request_ids=["r"])
    multi.save_kv_layer("layer", "tensor", "attention", slot=3)
    multi2, *others = worker()
    multi2.handle_preemptions(kv_connector_metadata=METADATA)
    for one in children:
        assert one.asked("start_load_kv") == [(CONTEXT, {"request_ids": ["r"]})]
        assert one.asked("save_kv_layer") == [("layer", "tensor", "attention", {"slot": 3})]
    assert others[1].asked("handle_preemptions") == [(Meta("b"),)]


def test_parameters_have_the_names_of_the_base_class():
    from inspect import signature

    for row in MEMBERS:
        base = KVConnectorBase_V1 if hasattr(KVConnectorBase_V1, row.name) else SupportsHMA
        theirs, ours = getattr(base, row.name), getattr(MultiConnector, row.name)
        if row.kind is not Kind.PROPERTY:
            assert list(signature(ours).parameters) == list(signature(theirs).parameters), row.name


def test_its_role_and_whether_it_has_metadata_are_its_own(worker, scheduler):
    multi, *_ = worker()
    assert multi.role is KVConnectorRole.WORKER
    assert not multi.has_connector_metadata()
    multi.bind_connector_metadata(METADATA)
    assert multi.has_connector_metadata()
    multi.clear_connector_metadata()
    assert not multi.has_connector_metadata()
    assert scheduler()[0].role is KVConnectorRole.SCHEDULER


def test_children_under_the_names_that_vllm_has(scheduler):
    multi, first, second = scheduler()
    assert multi.sub_connectors == multi._connectors == [first, second]
    multi.sub_connectors.clear()
    assert len(multi.sub_connectors) == 2


def test_a_call_for_the_other_side_is_refused(scheduler, worker):
    with pytest.raises(WrongSideError) as caught:
        scheduler()[0].wait_for_save()
    assert str(caught.value) == (
        "MultiConnector.wait_for_save belongs to the worker side, but this object was created for the scheduler "
        "side (role SCHEDULER)"
    )
    with pytest.raises(WrongSideError, match="reset_cache belongs to the scheduler side"):
        worker()[0].reset_cache()


# -- rules that join answers -----------------------------------------------------------------------

ANY = ("has_pending_push_work", "has_pending_block_frees", "requires_kv_delivery")
ALL = ("supports_divergent_local_hybrid_hits",)


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("second", [True, False])
@pytest.mark.parametrize("name", [*ANY, *ALL])
def test_it_does_if_any_does_or_if_all_do(make, name, first, second):
    multi = make([child(answers={name: first}), child(answers={name: second})])
    answer = getattr(multi, name)
    joined = answer() if callable(answer) else answer
    assert joined is (any if name in ANY else all)([first, second])


@pytest.mark.parametrize("name", ["has_pending_push_work", "has_pending_block_frees"])
def test_each_is_asked_whether_it_has_work(make, name):
    """A child may do something when it is asked, whatever the children before it have."""
    multi = make([child(answers={name: True}), child()])
    assert getattr(multi, name)()
    assert all(one.asked(name) for one in multi.sub_connectors)


@pytest.mark.parametrize(
    ("answers", "joined"),
    [
        ((None, None), None),
        ((True, None), None),
        ((False, True), False),
        ((None, False), False),
        ((True, True), True),
    ],
)
def test_a_reset_succeeds_if_each_succeeds(make, answers, joined):
    multi = make([child(answers={"reset_cache": answer}) for answer in answers])
    assert multi.reset_cache() is joined
    assert all(one.asked("reset_cache") for one in multi.sub_connectors)


@pytest.mark.parametrize(
    ("counts", "joined"), [((2, 2), 2), ((None, 2), None), ((None, None), None), ((2, None), None)]
)
def test_the_finished_count_is_that_of_all_or_none(make, counts, joined):
    multi = make([child(answers={"get_finished_count": count}) for count in counts])
    assert multi.get_finished_count() == joined


def test_different_finished_counts_are_named(make):
    multi = make([child(answers={"get_finished_count": 2}), child(answers={"get_finished_count": 4}, name="far")])
    with pytest.raises(ConfigError, match="reports") as caught:
        multi.get_finished_count()
    assert str(caught.value) == (
        "get_finished_count: the connectors expect reports from different numbers of workers: 'Scripted0' 2, "
        "'far' 4"
    )


def test_at_most_one_may_want_a_memory_pool(worker):
    pool = object()
    multi, *_ = worker(child(), child(answers={"get_mem_pool_context": pool}))
    assert multi.get_mem_pool_context() is pool
    assert worker()[0].get_mem_pool_context() is None
    multi, *_ = worker(*[child(answers={"get_mem_pool_context": pool})] * 2)
    with pytest.raises(ConfigError, match="pool") as caught:
        multi.get_mem_pool_context()
    assert str(caught.value) == (
        "connectors 'Scripted0', 'Scripted1' each want the KV caches in a memory pool of their own, but there is "
        "one allocation: at most one of them may"
    )


def test_events_are_chained_in_order(scheduler):
    multi, *_ = scheduler(child(answers={"take_events": [1, 2]}), child(), child(answers={"take_events": (3,)}))
    assert list(multi.take_events()) == [1, 2, 3]


@pytest.mark.parametrize(
    ("layouts", "joined"), [((None, None), None), ((None, "LBHNC"), "LBHNC"), (("BLHNC", "BLHNC"), "BLHNC")]
)
def test_the_layout_is_that_of_whoever_wants_one(layouts, joined):
    config = engine_config([child(layout=layout) for layout in layouts])
    assert MultiConnector.get_required_kvcache_layout(config) == joined


def test_different_layouts_are_named():
    config = engine_config([child(layout="LBHNC"), child(), child(layout="BLHNC")])
    with pytest.raises(ConfigError) as caught:
        MultiConnector.get_required_kvcache_layout(config)
    assert str(caught.value) == (
        "the connectors want different KV cache layouts: 'Scripted0' LBHNC, 'Scripted2' BLHNC"
    )


@pytest.mark.parametrize(
    ("wishes", "joined"), [((False, False), False), ((False, True), True), ((True, False), True), ((), False)]
)
def test_graphs_are_piecewise_if_any_requires_it(wishes, joined):
    extra = {"connectors": [child(piecewise=wish) for wish in wishes]}
    assert MultiConnector.requires_piecewise_for_cudagraph(extra) is joined


@pytest.mark.parametrize(
    ("answers", "joined"), [((True, True), True), ((False, True), False), ((True, False), False), ((), False)]
)
def test_it_sleeps_if_all_can(answers, joined):
    config = engine_config([child(sleep=answer) for answer in answers]).kv_transfer_config
    assert MultiConnector.supports_sleep_mode(config) is joined


@pytest.mark.parametrize(
    ("classes", "joined"),
    [
        (("ScriptedHMA", "ScriptedHMA"), True),
        (("ScriptedHMA", "Scripted"), False),
        ((), False),
    ],
)
def test_it_knows_groups_if_all_do(classes, joined):
    config = engine_config([child(name) for name in classes]).kv_transfer_config
    assert MultiConnector.all_children_support_hma(config) is joined


# -- shutdown --------------------------------------------------------------------------------------


def test_shutdown_reaches_everybody(scheduler):
    multi, first, second, third = scheduler(child(), child(), child())
    second.raises["shutdown"] = KeyError("lost")
    with pytest.raises(KeyError) as caught:
        multi.shutdown()
    assert caught.value.__notes__ == ["in shutdown of connector 'Scripted1'"]
    assert first.asked("shutdown") == third.asked("shutdown") == [()]


def test_shutdown_raises_everything(worker):
    multi, first, second = worker()
    first.raises["shutdown"], second.raises["shutdown"] = OSError("a"), KeyError("b")
    with pytest.raises(ExceptionGroup) as caught:
        multi.shutdown()
    assert caught.value.message == "2 of 2 connectors failed to shut down"
    assert [e.__notes__ for e in caught.value.exceptions] == [
        ["in shutdown of connector 'Scripted0'"],
        ["in shutdown of connector 'Scripted1'"],
    ]


def test_an_exception_passes_by_default(scheduler):
    multi, first, _ = scheduler()
    first.raises["update_connector_output"] = OSError("a")
    with pytest.raises(OSError, match="a"):
        multi.update_connector_output(KVConnectorOutput())
