"""With a vLLM: worlds with a draft model. Its KV is a layer of a group, it writes beyond the tokens of a step, and
the engine drops the last block of what it finds."""

from collections import Counter
from dataclasses import replace
from random import Random

import pytest

pytest.importorskip("kv_sim")

from kv_offload import describe
from kv_sim.actions import Action, Kind
from kv_sim.checkers.served import Served
from kv_sim.config import STATE, GroupConfig, WorldConfig
from kv_sim.engine.request_spec import RequestSpec
from kv_sim.fuzz import replay
from kv_sim.history.draws import config_for
from kv_sim.memory.kernels import Kernels
from kv_sim.subject import Trait
from kv_sim.world import World
from kv_vllm.installed import vllm_version

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]

WORLD = WorldConfig(engine="vllm", spec_tokens=2)
DRAFTERS = ("text", "model", "eagle", "mtp")
CLAIMS = frozenset({Trait.GROUPS, Trait.KEEPS, Trait.RESET})


@pytest.fixture(autouse=True)
def ours():
    """Our OffloadingConnector."""
    pytest.importorskip("vllm")
    vllm_version()
    from kv_vllm.driver.subjects import OUR_SUBJECTS

    return replace(OUR_SUBJECTS["our-offloading"], traits=CLAIMS)


def comes(name, tokens=16, samples=3):
    return Action(Kind.ADD, {"spec": RequestSpec(name, 0, tokens, 0, samples, samples).to_json()})


def found_in(subject, config, *actions):
    """What is wrong when everything has come to rest after these."""
    _, violation = replay(subject, config, actions)
    return None if violation is None else str(violation)


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_what_connectors_are_told_of_a_draft_model(drafter):
    from kv_vllm.vllm_world import kv_cache_config, vllm_config

    world = replace(WORLD, drafter=drafter, groups=(GroupConfig(), GroupConfig("sliding", 5), STATE))
    config = vllm_config(world, None)
    drafts = config.speculative_config
    assert drafts.num_speculative_tokens == 2
    assert config.num_lookahead_tokens == world.draft_slots == 2 * (drafter != "text")
    assert drafts.uses_draft_model() == (drafter == "model")
    assert drafts.use_eagle_block_drop() == (drafter in ("eagle", "mtp"))
    assert (drafts.method == "mtp") == (drafter == "mtp")
    marked = [group.is_eagle_group for group in kv_cache_config(world).kv_cache_groups]
    assert marked == [False, drafter == "mtp", False]


def test_all_of_them_are_drawn(ours):
    worlds = [config_for(replace(ours, traits=frozenset(Trait)), Random(seed), "vllm") for seed in range(400)]
    counts = Counter(world.drafter for world in worlds if world.spec_tokens)
    assert {*counts} == {*DRAFTERS}
    assert any(STATE in world.groups and world.draft_slots for world in worlds)


def test_a_draft_model_takes_a_token_of_a_step_beside_states():
    from kv_vllm.driver.engine import VllmEngine

    world = replace(WORLD, max_step_tokens=4, groups=(GroupConfig(), STATE))
    fitted = {drafter: VllmEngine.fit(replace(world, drafter=drafter)) for drafter in DRAFTERS}
    assert {drafter: fits.max_step_tokens for drafter, fits in fitted.items()} == {
        **dict.fromkeys(DRAFTERS, 4),
        "model": 5,
    }
    assert VllmEngine.fit(fitted["model"]) == fitted["model"]


@pytest.mark.parametrize(("drafter", "local", "found"), [("text", 12, 12), ("eagle", 8, 12), ("mtp", 8, 11)])
def test_who_drops_the_last_block(ours, monkeypatch, drafter, local, found):
    """vLLM of what the GPU has; a connector that is told of a group ends before the last token that it has."""
    asked, check = [], Served.check_match

    def match(self, request, tokens, count):
        asked.append((tokens, tokens + count))
        return check(self, request, tokens, count)

    monkeypatch.setattr(Served, "check_match", match)
    actions = [comes("r1"), Action(Kind.STEP), *[Action(Kind.SETTLE), Action(Kind.STEP)] * 4, comes("r2", 15)]
    World(replace(WORLD, drafter=drafter), ours).replay(actions)
    assert asked[:2] == [(0, 0), (local, found)]


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_drafts_are_written_beyond_the_tokens_of_a_step(ours, monkeypatch, drafter):
    """A model that reads all tokens by itself has the last one to read, too: a slot more."""
    counts, ahead = Counter(), Kernels._ahead

    def spied(self, attention, group):
        counts["slots"] = max(counts["slots"], len(attention.ahead.get(group, ())))
        for place in ahead(self, attention, group):
            counts["places"] += 1
            yield place

    monkeypatch.setattr(Kernels, "_ahead", spied)
    assert found_in(ours, replace(WORLD, drafter=drafter), comes("r1")) is None
    assert counts["slots"] == {"text": 0, "model": 2, "eagle": 1, "mtp": 1}[drafter]
    assert (counts["places"] > 0) == (drafter != "text")


def test_a_connector_that_forgets_the_mark_finds_too_much(ours, monkeypatch):
    """A planted bug that only worlds with a marked group show."""
    described = describe._group
    monkeypatch.setattr(describe, "_group", lambda *told: replace(described(*told), is_draft=False))
    actions = [comes("r1"), Action(Kind.SETTLE), comes("r2", 15)]
    for drafter in DRAFTERS:
        found = found_in(ours, replace(WORLD, drafter=drafter), *actions)
        if drafter == "mtp":
            assert found is not None and "a draft model's KV of a token depends on the next token" in found, found
        else:
            assert found is None, (drafter, found)
