"""What the ranks of a pipeline have room for: told once, and nothing is stored before all have."""

import logging

import pytest
from kv_offload_calls import arrive
from kv_offload_configs import FULL, WINDOW, Blocks, Request, kv_cache_config, make, step
from kv_offload_medium import ScriptedSpec, StrictManager

from kv_api import KVConnectorHandshakeMetadata, KVConnectorOutput, KVConnectorRole
from kv_offload.metadata import OffloadingWorkerMetadata, RankRoom


class Limited(StrictManager):
    """A manager that can be limited."""

    def limit_chunks(self, num_chunks):
        self.capacity = num_chunks
        return True


@pytest.fixture
def manager(monkeypatch):
    """Makes the manager that the medium's spec hands out."""

    def use(kind):
        found = kind()
        monkeypatch.setattr(ScriptedSpec, "manager", found)
        return found

    return use


def told(*rooms):
    """The joined report of ranks."""
    return KVConnectorOutput(kv_connector_worker_meta=OffloadingWorkerMetadata(rooms=[*rooms]))


def begin(connector, name="a"):
    """A request whose first step computes two blocks; the stores of that step."""
    request = arrive(connector, Request(name, range(8)))
    assert connector.get_num_new_matched_tokens(request, 0) == (0, False)
    connector.update_state_after_alloc(request, Blocks([1, 2]), 0)
    return request, connector.build_connector_meta(step(new=[(name, ([1, 2],))], counts={name: 8})).store_jobs


def go_on(connector, request):
    """Its next step computes nothing that fills a block; the stores of that step."""
    request.num_computed_tokens = 8
    request.tokens.append(99)
    meta = connector.build_connector_meta(step(more=[(request.request_id, None)], counts={request.request_id: 1}))
    return meta.store_jobs


def scheduler(**config):
    return make(world_size=2, stages=2, hold_blocks="never", **config)


def test_nothing_is_stored_before_all_have_told(manager):
    """And then what waited for it in the very next step, within what the smallest rank has."""
    limited, connector = manager(Limited), scheduler()
    request, jobs = begin(connector)
    assert not jobs
    connector.update_connector_output(told(RankRoom(32, 9)))
    assert not go_on(connector, request)
    connector.update_connector_output(told(RankRoom(48, 6)))
    assert limited.capacity == 6
    assert len(go_on(connector, request)) == 1
    connector.side.check()


def test_all_that_waited_for_it_are_stored_in_the_very_next_step(manager):
    manager(Limited)
    connector, names, tables = scheduler(), "abc", ([1, 2], [3, 4], [5, 6])
    requests = [Request(name, [number] * 8) for number, name in enumerate(names)]
    for request, table in zip(requests, tables, strict=True):
        connector.on_new_request(request)
        connector.get_num_new_matched_tokens(request, 0)
        connector.update_state_after_alloc(request, Blocks(table), 0)
    new = [(name, (table,)) for name, table in zip(names, tables, strict=True)]
    assert not connector.build_connector_meta(step(new=new, counts=dict.fromkeys(names, 8))).store_jobs
    connector.update_connector_output(told(RankRoom(32, 9), RankRoom(48, 6)))
    for request in requests:
        request.num_computed_tokens = 8
        request.tokens.append(99)
    meta = connector.build_connector_meta(step(counts=dict.fromkeys(names, 1)))
    assert [job.req_id for job in meta.store_jobs.values()] == [*names]


def test_they_may_tell_in_one_report(manager):
    limited, connector = manager(Limited), scheduler()
    both = OffloadingWorkerMetadata(rooms=[RankRoom(48, 6)]).aggregate(
        OffloadingWorkerMetadata(rooms=[RankRoom(32, 9)])
    )
    connector.update_connector_output(KVConnectorOutput(kv_connector_worker_meta=both))
    assert limited.capacity == 6
    connector.update_connector_output(told(RankRoom(32, 3), RankRoom(32, 3)))
    assert limited.capacity == 6, "what comes later is nobody's first word"
    assert begin(connector)[1]


def test_a_request_that_ends_before_is_not_stored(manager):
    connector = make(world_size=2, stages=2, hold_blocks="always")
    request, jobs = begin(connector)
    request.num_computed_tokens = 8
    assert connector.request_finished_all_groups(request, ([1, 2],)) == (False, None)
    assert not jobs
    connector.side.check()


@pytest.mark.parametrize("rooms", [(RankRoom(32, None), RankRoom(32, None)), (RankRoom(32, 8), RankRoom(32, 8))])
def test_a_manager_that_cannot_be_limited_will_do_for_stages_of_one_size(manager, rooms):
    manager(StrictManager)
    connector = scheduler()
    connector.update_connector_output(told(*rooms))
    assert begin(connector)[1]


@pytest.mark.parametrize(
    ("kind", "rooms"),
    [
        (StrictManager, (RankRoom(48, 6), RankRoom(32, 9))),
        (StrictManager, (RankRoom(48, 6), RankRoom(48, 6))),
        (Limited, (RankRoom(32, 9), RankRoom(48, None))),
    ],
)
def test_else_nothing_is_ever_stored_and_somebody_is_told(manager, caplog, kind, rooms):
    found, connector = manager(kind), scheduler()
    request, _ = begin(connector)
    with caplog.at_level(logging.WARNING, "kv_offload"):
        connector.update_connector_output(told(*rooms))
    for _ in range(3):
        assert not go_on(connector, request)
    assert not found.storing
    [record] = caplog.records
    sizes = ", ".join(map(str, sorted({room.bytes_per_block for room in rooms})))
    assert (record.levelname, record.getMessage()) == (
        "ERROR",
        f"nothing is offloaded: the stages of the pipeline hold KV of different sizes, {sizes} bytes a block, and "
        f"{kind.__name__} can't be limited to what all of them have room for; use a medium that can, as "
        "CPUOffloadingSpec, or stages with layers of the same sizes (VLLM_PP_LAYER_PARTITION)",
    )
    connector.side.check()


@pytest.mark.parametrize(
    ("kind", "told_of"), [(Limited, "6 chunks"), (StrictManager, "1000 chunks")], ids=["agree", "differ"]
)
def test_what_the_medium_is_like_is_told_when_all_have_told(manager, kind, told_of):
    """Not before, since it may change then; and also if nothing will be stored."""
    found, connector = manager(kind), scheduler()
    found.config_info = lambda: [{"room": f"{found.capacity} chunks"}]

    def infos():
        stats = connector.get_kv_connector_stats()
        return None if stats is None else stats.data["info"]

    assert infos() is None
    connector.update_connector_output(told(RankRoom(32, 9)))
    assert infos() is None
    connector.update_connector_output(told(RankRoom(48, 6)))
    assert (infos(), infos()) == ([{"room": told_of}], None)


def worker(**config):
    return make(KVConnectorRole.WORKER, **config)


def test_a_rank_of_a_pipeline_tells_once():
    connector = worker(world_size=2, stages=2, rank=1)
    assert connector.build_connector_worker_meta().rooms == [RankRoom(32, None)]
    assert connector.build_connector_worker_meta() is None


def test_others_have_nothing_to_tell(manager):
    assert worker(world_size=2).build_connector_worker_meta() is None
    manager(StrictManager)
    assert begin(make(world_size=2, hold_blocks="never"))[1], "and nobody waits for it"


def test_a_rank_without_layers_of_a_group_has_no_pages_of_it():
    cache = kv_cache_config(((FULL, 4, 0), (WINDOW, 4, 8)))
    cache.kv_cache_groups[0].layer_names = []
    cache.kv_cache_tensors = cache.kv_cache_tensors[1:]
    connector = worker(world_size=2, stages=2, rank=1, cache=cache)
    found = ScriptedSpec.workers[-1].kv_caches
    assert [len(refs) for refs in found.group_data_refs] == [0, 1]
    assert connector.build_connector_worker_meta().rooms == [RankRoom(32, None)]


def test_what_other_connectors_workers_tell_each_other_is_let_pass(manager):
    """Also that of later stages, which vLLM's MultiConnector brings to all of its children."""
    manager(StrictManager)
    foreign = KVConnectorHandshakeMetadata()
    scheduler().set_xfer_handshake_metadata_pp_aware({(0, 0): foreign, (1, 0): foreign})
