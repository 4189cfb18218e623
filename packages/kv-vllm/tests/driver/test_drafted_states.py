"""With a vLLM: drafts beside states. Each token of a step has a state of its own, in blocks that vLLM's scheduler
keeps for it, and where a request goes on depends on how many drafts were right."""

from collections import Counter
from dataclasses import replace
from operator import ge
from random import Random
from types import SimpleNamespace

import pytest

pytest.importorskip("kv_sim")

from kv_offload.scheduler.storing.handed_states import HandedStates
from kv_sim.config import STATE, GroupConfig, WorldConfig
from kv_sim.engine.request import SimRequest
from kv_sim.engine.request_spec import RequestSpec
from kv_sim.memory.launched import Attention, StateMoves
from kv_sim.violation import Invariant, Violation
from kv_sim.world import World
from kv_vllm.installed import vllm_version

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]

GROUPS = (GroupConfig(), STATE)
WORLD = WorldConfig(block_size=4, groups=GROUPS, spec_tokens=2, hands_over_states=True)
HASHES = SimRequest(RequestSpec("r1", 0, 40, 0, 1, 1), 4, 0).hashes


@pytest.fixture(autouse=True)
def drafted_states():
    pytest.importorskip("vllm")
    vllm_version()
    from kv_vllm.driver import drafted_states

    return drafted_states


class Steps:
    """Those of one request, whose table of states is said in full at each."""

    def __init__(self, made):
        self.made, self.stint = made, 1

    def take(self, start, end, table, drafts=0, wrong=0, name="r1"):
        attention = Attention(name, start, end, ((1, 2, 3, 4), tuple(table)), HASHES)
        step = SimpleNamespace(
            stints={name: self.stint},
            output=SimpleNamespace(scheduled_spec_decode_tokens={name: [0] * drafts} if drafts else {}),
            rejected={name: wrong} if wrong else {},
            attentions=[attention],
        )
        self.made.place(step)
        (placed,) = step.attentions
        assert replace(placed, states={}) == attention
        return placed.states


@pytest.fixture
def steps(drafted_states):
    return Steps(drafted_states.DraftedStates(WORLD))


def test_each_draft_leaves_a_state_behind_the_running_block(steps):
    assert steps.take(0, 5, [0, 11, 12, 13]) == {1: StateMoves(None, ((11, 4),))}
    assert steps.take(5, 8, [0, 11, 12, 13], drafts=2, wrong=2) == {1: StateMoves(11, ((11, 5), (12, 6), (13, 7)))}
    assert steps.take(6, 8, [0, 11, 12, 13], drafts=1) == {1: StateMoves(11, ((11, 6), (12, 7), (11, 7)))}
    assert steps.take(8, 9, [0, 11, 12, 13, 14]) == {1: StateMoves(11, ((12, 8),), 12)}, (
        "its copy went to the running block"
    )


@pytest.mark.parametrize(("wrong", "before"), [(0, 13), (1, 12), (2, 11)])
def test_the_next_step_goes_on_from_the_last_right_draft(steps, wrong, before):
    steps.take(0, 5, [0, 11, 12, 13])
    steps.take(5, 8, [0, 11, 12, 13], drafts=2, wrong=wrong) if wrong else steps.take(
        4, 7, [0, 11, 12, 13], drafts=2
    )
    start = 8 - wrong if wrong else 7
    assert steps.take(start, start + 1, [0, 11, 12, 13, 14])[1].before == before


def test_a_state_that_ends_a_block_is_copied_to_where_the_table_has_the_block(steps):
    """The scheduler moves a block of drafts to the end meanwhile; a worker still has it in its old place."""
    steps.take(0, 7, [0, 11, 12, 13])
    moved = steps.take(7, 10, [0, 11, 12, 13, 14], drafts=2, wrong=1)
    assert moved == {1: StateMoves(11, ((12, 7), (13, 8), (14, 9), (11, 7)), 12)}
    assert steps.take(9, 10, [0, 0, 12, 13, 14]) == {1: StateMoves(13, ((12, 9),))}
    assert steps.take(10, 13, [0, 0, 0, 13, 14, 12], drafts=2) == {
        1: StateMoves(12, ((13, 10), (14, 11), (12, 12), (12, 11)), 13)
    }


def test_who_comes_back_goes_on_from_its_table(steps):
    """From what was found or loaded, wherever it was before."""
    steps.take(0, 5, [0, 11, 12, 13])
    steps.take(5, 8, [0, 11, 12, 13], drafts=2)
    steps.stint = 2
    assert steps.take(4, 6, [21, 22, 23, 24]) == {1: StateMoves(21, ((22, 5),), 22)}
    assert steps.take(4, 6, [21, 22, 23, 24]) == {1: StateMoves(21, ((22, 5),), 22)}, (
        "taken back after a load that failed"
    )
    assert steps.take(4, 5, [0, 31], name="r2") == {1: StateMoves(0, ((31, 4),), 31)}


def test_without_drafts_or_states_the_table_tells_all(drafted_states):
    for world in (
        replace(WORLD, spec_tokens=0),
        replace(WORLD, groups=(GroupConfig(), GroupConfig("sliding", 5))),
    ):
        assert Steps(drafted_states.DraftedStates(world)).take(0, 5, [0, 11, 12, 13], drafts=2) == {}


@pytest.mark.parametrize(
    ("changes", "drafts"),
    [
        ({}, 2),
        ({"block_size": 2}, 1),
        ({"block_size": 2, "run_ahead": 1, "async_scheduling": True}, 0),
        ({"block_size": 2, "run_ahead": 3, "async_scheduling": True}, 0),
        ({"run_ahead": 1, "async_scheduling": True}, 1),
        ({"block_size": 8, "run_ahead": 1, "async_scheduling": True}, 2),
        ({"run_ahead": 1}, 0),
        ({"hashes_per_block": 2}, 0),
        ({"groups": (GroupConfig(),), "block_size": 2}, 2),
    ],
)
def test_drafts_of_all_steps_under_way_fit_into_a_block(changes, drafts):
    from kv_vllm.driver.engine import VllmEngine

    world = replace(WORLD, sessions=True, **changes)
    fitted = VllmEngine.fit(world)
    assert (fitted.spec_tokens, fitted.sessions) == (drafts, not drafts or STATE not in world.groups)


def test_connectors_are_told_how_many_drafts_there_are(drafted_states):
    """LMCache's looks: how many blocks of states vLLM may move depends on it."""
    from kv_vllm.vllm_world import vllm_config

    for world in (WORLD, replace(WORLD, spec_tokens=1), replace(WORLD, groups=(GroupConfig(),))):
        told = vllm_config(world, None)
        assert told.speculative_config.num_speculative_tokens == told.num_speculative_tokens == world.spec_tokens
        assert not told.speculative_config.use_eagle(), "drafts have no layers of their own"
    assert vllm_config(replace(WORLD, spec_tokens=0), None).speculative_config is None


SOUND = replace(
    WORLD, engine="vllm", num_blocks=29, silent=frozenset({"fail", "tear", "lose", "repeat", "restart"})
)
"""In one of so many blocks vLLM keeps each state that ends a block."""
WORLDS = {
    "one step at a time": SOUND,
    "ahead, on runner V2": replace(SOUND, block_size=8, run_ahead=1, async_scheduling=True, runner=2),
}


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("name", ["our-offloading", "our-offloading-chunks", "our-offloading-held"])
def test_they_go_through_a_medium(monkeypatch, drafted_states, name, world):
    from kv_vllm.driver.subjects import OUR_SUBJECTS

    counts, place, begin = Counter(), drafted_states.DraftedStates._placed, HandedStates._begin

    def placed(self, step, attention):
        told = place(self, step, attention)
        drafts = len(step.output.scheduled_spec_decode_tokens.get(attention.request_id, ()))
        counts["drafts"] += drafts
        counts["ends of blocks"] += drafts > 0 and len(told.states[1].after) > drafts + 1
        return told

    def begun(self, state, boundary, taken):
        counts["stored"] += 1
        counts["stored of answers"] += boundary > state.request.num_prompt_tokens
        begin(self, state, boundary, taken)

    monkeypatch.setattr(drafted_states.DraftedStates, "_placed", placed)
    monkeypatch.setattr(HandedStates, "_begin", begun)
    subject = OUR_SUBJECTS[name]
    subject = replace(subject, extra_config={**subject.extra_config, "offload_prompt_only": False})
    for seed in range(12):
        made = World(WORLDS[world], subject)
        made.run(Random(seed), 80)
        counts["loads"] += made.coverage.situations["match: asynchronous load"]
    told = [counts[what] for what in ("drafts", "ends of blocks", "stored", "stored of answers", "loads")]
    assert all(map(ge, told, (200, 30, 50, 4, 1))), told


def test_a_state_of_a_wrong_draft_is_noticed(monkeypatch, drafted_states):
    """A worker that goes on as if no draft had been right."""
    from kv_vllm.driver.subjects import OUR_SUBJECTS

    follow = drafted_states.DraftedStates._follow

    def mistaken(self, stint, attention):
        request = follow(self, stint, attention)
        request.right_drafts = 0
        return request

    monkeypatch.setattr(drafted_states.DraftedStates, "_follow", mistaken)
    world = World(SOUND, OUR_SUBJECTS["our-offloading"])
    with pytest.raises(Violation, match="which goes on from this state") as raised:
        world.run(Random(0), 80)
    assert raised.value.invariant is Invariant.CONTENT
