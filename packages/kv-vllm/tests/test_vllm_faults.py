"""Faults of vLLM's own scheduler that the differential met. A test here fails when vLLM has mended its fault.

No engine model takes part: the events are written by hand, and the connector answers them.
"""

import pytest

from kv_sim.config import WorldConfig
from kv_vllm.installed import vllm_version
from kv_vllm.trace import Abort, Add, Process, Sampled, Schedule, Trace, arguments_of

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]

PROMPT = (11, 12, 13, 14, 15, 16)
"""A block of four tokens, and two more."""
FAILED = Process(1, {"r": Sampled((7,), ends=False)}, {"invalid_block_ids": [1]})
"""The step samples, and the load of block 1 in it has failed."""


class Connector:
    """Has the first block of every prompt that isn't cached, and writes down what it is asked."""

    def __init__(self):
        self.calls = []

    def call(self, name, *arguments):
        plain = arguments_of(name, arguments)
        self.calls.append((name, plain))
        if name == "get_num_new_matched_tokens":
            return (4 - plain["local"], False)
        return (False, None) if name == "request_finished" else False

    def last(self, name):
        return [plain for called, plain in self.calls if called == name][-1]


@pytest.fixture
def engine():
    """Makes vLLM's scheduler, with a connector that loads in the step."""
    pytest.importorskip("vllm")
    vllm_version()
    from kv_vllm.vllm_scheduler import VllmScheduler

    def make(**world):
        connector = Connector()
        trace = Trace([], all_groups=False, requires_delivery=False)
        return VllmScheduler(WorldConfig(failure_policy="recompute", **world), trace, connector), connector

    return make


def added(name):
    return Add(name, PROMPT, 5, None, None, False)


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
