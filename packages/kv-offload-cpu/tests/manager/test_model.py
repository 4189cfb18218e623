"""The manager against the obvious model, action by action, every policy, a pool that is always too small."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kv_offload_cpu_world import ACTIONS, World

from kv_offload_cpu import POLICIES

FEWER = settings(max_examples=max(10, settings().max_examples // 2))
"""One of these takes long."""

numbers = st.integers(0, 999)
actions = st.lists(st.tuples(st.sampled_from(ACTIONS), numbers, numbers), min_size=20, max_size=100)


@pytest.mark.parametrize("policy", sorted(POLICIES))
@FEWER
@given(capacity=st.integers(1, 14), threshold=st.integers(0, 3), discards=st.booleans(), actions=actions)
def test_short_histories(policy, capacity, threshold, discards, actions):
    world = World(policy, capacity, threshold, discards)
    for action in actions:
        world.act(*action)
    world.quiesce()


@pytest.mark.parametrize("policy", sorted(POLICIES))
@pytest.mark.parametrize("seed", range(15))
def test_long_histories(policy, seed):
    """Each seed has actions that it favours and actions that it never takes."""
    random = Random(seed)
    world = World(policy, random.randint(1, 24), random.randint(0, 3), discards=random.random() < 0.5)
    weights = [random.random() ** 2 for _ in ACTIONS]
    for action in random.choices(ACTIONS, weights, k=200):
        world.act(action, random.randrange(1000), random.randrange(1000))
    world.quiesce()
