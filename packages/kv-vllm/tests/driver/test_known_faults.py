"""Where a history ends since vLLM is known to go wrong by itself; and where it goes on."""

from types import SimpleNamespace

import pytest

pytest.importorskip("kv_sim")

from kv_sim.config import WorldConfig
from kv_sim.guard import HistoryEnds

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("a_vllm")]

LOST = "a session stops while it is preempted, and vLLM loses it"
TAKEN_ALONG = "a session stops before its last draft, and vLLM takes what comes after it along"


def end_of(check, *arguments):
    """Why a history ends there; None if it goes on."""
    try:
        check(*arguments)
    except HistoryEnds as end:
        return str(end)
    return None


def end_of_session(monkeypatch, *, version=(0, 32), is_async=False, known=("vllm", "ledger"), **said):
    """That of one that was asked for three tokens, has two, and gets some."""
    from vllm.v1.request import RequestStatus

    from kv_vllm.driver import known_faults

    has = {"status": "PREEMPTED", "drops": False, "resumable": True, "tokens": 1, "next": True, "told": False}
    has |= said
    request = SimpleNamespace(
        status=RequestStatus[has["status"]],
        drop_stale_output=has["drops"],
        resumable=has["resumable"],
        num_output_tokens=2,
    )
    twin = SimpleNamespace(
        asked=SimpleNamespace(output_tokens=3), has_next_turn=has["next"], was_told_to_end=has["told"]
    )
    requests = {"a": request} if "vllm" in known else {}
    twins = {"a": twin} if "ledger" in known else {}
    monkeypatch.setattr(known_faults, "vllm_version", lambda: version)
    world = WorldConfig(async_scheduling=is_async)
    vllm, ledger = SimpleNamespace(requests=requests), SimpleNamespace(twins=twins)
    return end_of(known_faults.end_at_broken_session, world, vllm, ledger, {"a": [0] * has["tokens"]})


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({}, LOST),
        ({"is_async": True}, LOST),
        ({"next": False}, LOST),
        ({"told": True}, LOST),
        ({"next": False, "told": True}, None),
        ({"tokens": 0}, None),
        ({"drops": True}, None),
        ({"status": "RUNNING"}, None),
        ({"status": "RUNNING", "tokens": 2}, TAKEN_ALONG),
        ({"status": "RUNNING", "tokens": 2, "is_async": True}, None),
        ({"next": False, "told": True, "tokens": 2}, TAKEN_ALONG),
        ({"resumable": False}, None),
        ({"known": ()}, None),
        ({"known": ("vllm",)}, None),
        ({"known": ("ledger",)}, None),
        ({"version": (0, 33)}, None),
    ],
    ids=str,
)
def test_a_session_that_vllm_breaks(monkeypatch, said, why):
    assert end_of_session(monkeypatch, **said) == why


STUCK = {"a": ([1, 3, 0], [2]), "b": ([4], [0, 5])}
"""The tables of two prompts that are loaded."""


@pytest.mark.parametrize(
    ("said", "ends"),
    [
        ({}, True),
        ({"loading": "ab", "ended": "ab"}, True),
        ({"loading": "b", "ended": "a"}, False),
        ({"scheduled": {"b": 3}}, False),
        ({"running": ["c"]}, False),
        ({"tables": {}}, False),
        ({"held": 7}, False),
        ({"pause": "PAUSED_NEW"}, False),
    ],
    ids=str,
)
def test_loads_that_leave_no_room(said, ends):
    """Not where one is under way, or a pause, or blocks that somebody else holds, may be the cause."""
    from vllm.v1.core.sched.interface import PauseState
    from vllm.v1.request import RequestStatus

    from kv_vllm.driver.known_faults import end_where_loads_left_no_room

    tables, loading = said.get("tables", STUCK), said.get("loading", "")
    states = {True: RequestStatus.WAITING_FOR_REMOTE_KVS, False: RequestStatus.WAITING}
    begun = [SimpleNamespace(request_id=name, status=states[name in loading]) for name in tables]
    blocks = [
        SimpleNamespace(
            block_id=block, ref_cnt=int(block in {0, 1, 2, 3, 4, 5, said.get("held")}), is_null=not block
        )
        for block in range(9)
    ]
    vllm = SimpleNamespace(
        _inflight_prefills=begun,
        running=said.get("running", []),
        pause_state=PauseState[said.get("pause", "UNPAUSED")],
        finished_recving_kv_req_ids=set(said.get("ended", "")),
        kv_cache_manager=SimpleNamespace(get_block_ids=tables.get, block_pool=SimpleNamespace(blocks=blocks)),
    )
    output = SimpleNamespace(num_scheduled_tokens=said.get("scheduled", {}))
    assert (end_of(end_where_loads_left_no_room, vllm, output) is not None) == ends


@pytest.mark.parametrize(
    ("failed", "ends"), [({1}, False), ({2}, False), ({3}, True), ({1, 3}, True), ((), False)]
)
def test_a_failed_block_that_several_requests_share(failed, ends):
    from kv_vllm.driver.known_faults import end_at_shared_failure

    tables = {"a": ([1, 3], [2, 2]), "b": ([3], [4])}
    running = [SimpleNamespace(request_id=name) for name in tables]
    manager = SimpleNamespace(get_block_ids=tables.get)
    vllm, report = (
        SimpleNamespace(running=running, kv_cache_manager=manager),
        SimpleNamespace(invalid_block_ids=failed),
    )
    assert (end_of(end_at_shared_failure, vllm, report) is not None) == ends


@pytest.mark.parametrize("policy", ["recompute", "fail"])
@pytest.mark.parametrize(("blocks", "requests"), [({1}, ()), ((), {"a"}), ((), ())])
def test_a_failed_load_that_is_recomputed(policy, blocks, requests):
    from kv_vllm.driver.known_faults import end_at_recomputed_load

    report = SimpleNamespace(invalid_block_ids=blocks, failed_recving=requests)
    end = end_of(end_at_recomputed_load, WorldConfig(failure_policy=policy), report)
    assert (end is not None) == (policy == "recompute" and bool(blocks or requests))
