"""Faults of vLLM's own scheduler that the differential met. A test here fails when vLLM has mended its fault.

No engine model takes part: the events are written by hand, and the connector answers them.
"""

import pytest

from kv_sim.config import GroupConfig, WorldConfig
from kv_vllm.differential.trace import Abort, Add, Process, Sampled, Schedule, Trace, arguments_of
from kv_vllm.installed import vllm_version

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]

PROMPT = (11, 12, 13, 14, 15, 16)
"""A block of four tokens, and two more."""
FAILED = Process(1, {"r": Sampled((7,), ends=False)}, {"invalid_block_ids": [1]})
"""The step samples, and the load of block 1 in it has failed."""


class Connector:
    """Has the first blocks of every prompt, as far as they aren't cached, and writes down what it is asked."""

    def __init__(self, has, is_async, groups):
        self.has = has
        self.is_async = is_async
        self.groups = tuple(range(groups))
        self.calls = []
        self.call_pool = None

    def call(self, name, *arguments):
        plain = arguments_of(name, arguments)
        self.calls.append((name, plain))
        if name == "get_num_new_matched_tokens":
            return (self.has - plain["local"], self.is_async)
        return {"request_finished": (False, None), "get_loaded_kv_cache_group_ids": self.groups}.get(name, False)

    def last(self, name):
        return [plain for called, plain in self.calls if called == name][-1]


@pytest.fixture
def engine():
    """Makes vLLM's scheduler, with a connector."""
    pytest.importorskip("vllm")
    vllm_version()
    from kv_vllm.differential.scheduler import VllmScheduler

    def make(has=4, is_async=False, **world):
        config = WorldConfig(**{"failure_policy": "recompute", **world})
        connector = Connector(has, is_async, len(config.groups))
        trace = Trace([], all_groups=len(config.groups) > 1, requires_delivery=False)
        return VllmScheduler(config, trace, connector), connector

    return make


def added(name, prompt=PROMPT):
    return Add(name, prompt, 5, None, None, False)


def test_a_failed_load_in_the_step_leaves_a_placeholder(engine):
    """AsyncScheduler then schedules a token that nobody knows yet."""
    scheduler, connector = engine(run_ahead=1, async_scheduling=True)
    for event in (added("r"), Schedule(1), FAILED, Schedule(2)):
        scheduler.apply(event)
    assert connector.last("build_connector_meta")["counts"] == {"r": len(PROMPT) + 1}


def test_without_async_scheduling_the_prompt_is_computed_again(engine):
    """The same on Scheduler, where it is right."""
    scheduler, connector = engine()
    for event in (added("r"), Schedule(1), FAILED, Schedule(2)):
        scheduler.apply(event)
    assert connector.last("build_connector_meta")["counts"] == {"r": len(PROMPT)}


def test_a_block_that_was_never_loaded_stays_in_the_prefix_cache(engine):
    """Its request is aborted before it computes the block again; the next one takes what is in there."""
    scheduler, connector = engine()
    for event in (added("r"), Schedule(1), FAILED, Abort("r", "running"), added("q"), Schedule(2)):
        scheduler.apply(event)
    step = connector.last("build_connector_meta")
    assert step["new"] == [{"request": "q", "blocks": [[1, 2]], "computed": 4}]
    assert connector.last("update_state_after_alloc")["external"] == 0, "nobody loads it"


def test_the_connector_is_asked_for_what_is_not_cached(engine):
    """The same without a failure: the first block is computed, so the hit is right."""
    scheduler, connector = engine()
    for event in (
        added("r"),
        Schedule(1),
        Process(1, FAILED.sampled, {}),
        Abort("r", "running"),
        added("q"),
        Schedule(2),
    ):
        scheduler.apply(event)
    assert connector.last("get_num_new_matched_tokens")["local"] == 4


def test_a_failed_block_that_two_requests_share_counts_as_computed_for_the_second(engine):
    """Both fail for it, and the connector is told that the second one ends with eight tokens; nobody has them."""
    scheduler, connector = engine(has=8, failure_policy="fail")
    shared = tuple(range(100, 108))
    report = {"invalid_block_ids": [1, 2]}
    events = (added("r", (*shared, 1, 2)), added("s", (*shared, 3, 4, 5)), Schedule(1), Process(1, {}, report))
    for event in events:
        scheduler.apply(event)
    finished = [(plain["request"], plain["computed"]) for name, plain in connector.calls if "finished" in name]
    assert finished == [("r", 0), ("s", 8)]


def test_nobody_recomputes_a_shared_block_whose_first_request_goes_away(engine):
    """The second one goes on after eight tokens, which no load filled and nobody computes."""
    scheduler, connector = engine(has=8)
    shared = tuple(range(100, 108))
    for event in (
        added("r", (*shared, 1, 2)),
        added("s", (*shared, 3, 4, 5)),
        Schedule(1),
        Process(1, {}, {"invalid_block_ids": [1, 2]}),
        Abort("r", "running"),
        Schedule(2),
    ):
        scheduler.apply(event)
    (again,) = connector.last("build_connector_meta")["cached"]
    assert (again["request"], again["computed"]) == ("s", 8)


LONG = tuple(range(100, 122))
"""Six blocks, of which the connector has four."""


@pytest.mark.parametrize("end", ["fails", "ends well"])
def test_a_failed_asynchronous_load_is_in_the_way_of_the_next(engine, end):
    """Of 8 free blocks the request needs 4, and reserves 6 for itself: it never gets any."""
    scheduler, connector = engine(has=16, is_async=True, num_blocks=9)
    failed = [1] if end == "fails" else []
    report = {"finished_recving": ["r"], "invalid_block_ids": failed}
    for event in (added("r", LONG), Schedule(1), Process(1, {}, report), Schedule(2), Schedule(3), Schedule(4)):
        scheduler.apply(event)
    blocks = [plain["blocks"] for name, plain in connector.calls if name == "update_state_after_alloc"]
    asked = [name for name, _ in connector.calls if name == "get_num_new_matched_tokens"]
    assert (len(blocks), len(asked)) == ((1, 4) if failed else (2, 1))


@pytest.mark.parametrize(("spare", "go_on"), [(0, []), (1, ["r"])])
def test_a_load_leaves_no_room_for_the_request_before_it(engine, spare, go_on):
    """Both prompts need four blocks for their next chunk; vLLM counts three, and none of them ever goes on.

    The three are of full attention. The window's limit of five is below the eight that it has passed or holds.
    """
    groups = (GroupConfig(), GroupConfig("sliding", 8))
    scheduler, connector = engine(
        has=32, is_async=True, groups=groups, num_blocks=24 + spare, max_step_tokens=8, prefix_caching=False
    )
    scheduler.apply(added("r", tuple(range(100, 141))))
    scheduler.apply(added("q", tuple(range(200, 241))))
    report = {"finished_recving": ["q", "r"]}
    for event in (Schedule(1), Process(1, {}, report), Schedule(2), Process(2, {}, {}), Schedule(3)):
        scheduler.apply(event)
    loads = [plain["external"] for name, plain in connector.calls if name == "update_state_after_alloc"]
    assert loads[:2] == [32, 32]
    assert list(connector.last("build_connector_meta")["counts"]) == go_on
