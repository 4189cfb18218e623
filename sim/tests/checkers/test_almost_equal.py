"""Two prompts that differ only in the last token of a chunk arrive at rest, and aren't taken for each other."""

import pytest

from kv_sim.actions import Action, Kind
from kv_sim.config import GroupConfig, WorldConfig
from kv_sim.engine.request_spec import RequestSpec
from kv_sim.examples.catalogue import LATER, MEMORY, OFFLOAD_HELD, SUBJECTS
from kv_sim.fuzz import replay
from kv_sim.subject import Subject
from kv_sim.zoo.registry import PLANTED

CHUNKS = SUBJECTS["offload-chunks"]
UNEQUAL = (GroupConfig(parts=2), GroupConfig("sliding", 8))
ONE = [Action(Kind.ADD, {"spec": RequestSpec("r1", 1, 1, 0, 1, 1).to_json()})]
EARLY = next(planted.subject for planted in PLANTED if planted.name == "KeysOneHashEarly")


@pytest.mark.parametrize(
    "config",
    [
        WorldConfig(hashes_per_block=2),
        WorldConfig(block_size=8, groups=UNEQUAL, hashes_per_block=2, num_blocks=60),
    ],
    ids=["finer hashes", "blocks of several sizes"],
)
def test_a_key_of_the_hash_before_is_found_though_no_other_request_has_it(config: WorldConfig) -> None:
    _, violation = replay(EARLY, config, ONE)
    assert violation is not None
    assert "request almost-2" in str(violation)


@pytest.mark.parametrize("subject", [MEMORY, LATER, CHUNKS, OFFLOAD_HELD], ids=lambda one: one.kv_connector)
def test_both_have_one_token_of_a_chunk_for_themselves(subject: Subject) -> None:
    config = WorldConfig(num_blocks=40)
    world, violation = replay(subject, config, ONE)
    assert violation is None and world is not None
    first, second, again = [one.spec for one in world.engine.outcome.ended if "almost" in one.request_id]
    size = config.block_size * subject.blocks_per_chunk
    assert first == RequestSpec("almost-1", 0, size - 1, 1, 1, 1)
    assert second == again == RequestSpec("almost-2", 0, size - 1, 2, 1, 1)
    assert first.prompt[:-1] == second.prompt[: size - 1]
    assert first.prompt[-1] != second.prompt[size - 1]


@pytest.mark.parametrize(
    "config",
    [
        WorldConfig(num_blocks=2, block_size=2),
        WorldConfig(num_blocks=3, block_size=4, spec_tokens=1),  # a chunk and one more token
    ],
)
def test_where_they_do_not_fit_none_arrives(config: WorldConfig) -> None:
    world, violation = replay(LATER, config, ONE)
    assert violation is None and world is not None
    assert [request.request_id for request in world.engine.outcome.ended] == ["r1"]


def test_where_nothing_arrived_none_arrives() -> None:
    world, violation = replay(LATER, WorldConfig(num_blocks=40), [])
    assert violation is None and world is not None
    assert not world.engine.outcome.ended
