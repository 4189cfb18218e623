"""Draws a world: its sizes, and the features that a connector's claims allow.

A seed stands for a history, and one more random draw here, or other weights, would give every seed another
history. So nothing is drawn for most features: ``features`` lets the sizes decide.
"""

from dataclasses import replace
from random import Random

from kv_sim.config import BUILTIN_ENGINE, STATE, GroupConfig, Role, WorldConfig
from kv_sim.engines import find_engine
from kv_sim.history.features import (
    sizes_of,
    with_a_window_alone,
    with_drafter,
    with_failing_loads,
    with_images,
    with_little_room,
    with_loads,
    with_more_loads,
    with_own_cache,
    with_pauses,
    with_producer_and_consumer,
    with_sessions,
    with_shared_store,
    with_stages,
    with_strange_peer,
    with_tails,
    with_trusted_router,
    with_two_engines,
    with_unequal_blocks,
)
from kv_sim.subject import Subject, Trait

SWARM = ("abort", "fail", "tear", "lose", "repeat", "restart", "reset", "reset_all", "same_id", "spec", "advance")
"""What a world may leave out altogether: actions, resets of the connector
(``reset_all``), ids that come back (``same_id``) and drafts (``spec``).

``tear`` names no action. It is in this list because one random number is drawn for each entry.
"""

_ROLES: tuple[Role, ...] = ("kv_both", "kv_both", "kv_both", "kv_both", "kv_both", "kv_consumer", "kv_producer")


def config_for(subject: Subject, random: Random, engine: str = BUILTIN_ENGINE) -> WorldConfig:
    """Draw a world that is within what the subject claims to withstand and the engine can do."""
    config = replace(draw_config(random), engine=engine)
    if Trait.GROUPS not in subject.traits:
        config = replace(config, groups=(GroupConfig(),))
    elif Trait.STATES in subject.traits:
        config = with_states(config, random)
    if Trait.FINE in subject.traits:
        config = with_tails(with_fine_hashes(config, random))
    if Trait.GROUPS in subject.traits:
        config = with_a_window_alone(config)
    if Trait.RANKS not in subject.traits:
        config = replace(config, tp_size=1, pp_size=1)
    if Trait.ZEROING not in subject.traits and config.runner == 2:
        config = replace(config, zero_new_blocks=False, hashes_per_block=1)
    if subject.shares_store:
        config = with_shared_store(config, subject)
    if subject.serves_peers:
        config = _with_peers(config, subject)
    elif Trait.FAILURES in subject.traits:
        config = with_failing_loads(with_loads(config))
    else:
        config = with_loads(config)
    config = with_drafter(with_pauses(with_stages(with_sessions(config))))
    if engine == BUILTIN_ENGINE and Trait.IMAGES in subject.traits:
        config = with_images(config)
    if Trait.UNEQUAL in subject.traits and find_engine(engine).has_unequal_blocks:
        config = with_unequal_blocks(config)
    return find_engine(engine).fit(with_little_room(with_more_loads(config, subject), subject))


def _with_peers(config: WorldConfig, subject: Subject) -> WorldConfig:
    config = with_own_cache(config if Trait.TICKETS in subject.traits else with_trusted_router(config))
    if subject.engines == 1:
        return config
    connector = find_engine(config.engine).connector_class(subject.transfer_config(config))
    does_both = getattr(connector, "holds_and_pulls", True)
    config = with_two_engines(config) if does_both else with_producer_and_consumer(config)
    return with_strange_peer(config) if Trait.STRANGERS in subject.traits else config


def draw_config(random: Random, *, groups: int | None = None) -> WorldConfig:
    """Draw a world. Many worlds lack any given feature, so that the other features occur more often."""
    num_groups = groups or random.choices([1, 2], [3, 1])[0]
    sliding = tuple(GroupConfig("sliding", random.choice([4, 5, 8, 11])) for _ in range(num_groups - 1))
    run_ahead = random.choices([0, 1, 2, 3], [4, 3, 1, 1])[0]
    silent = frozenset(kind for kind in SWARM if random.random() < 0.5)
    return WorldConfig(
        num_blocks=random.choice([9, 12, 16, 24, 40]) * num_groups,
        block_size=random.choice([2, 4, 4, 8]),
        groups=(GroupConfig(), *sliding),
        layers=random.choice([1, 1, 2]),
        tp_size=random.choices([1, 2], [3, 1])[0],
        pp_size=random.choices([1, 2], [5, 1])[0],
        max_running=random.choice([1, 2, 4, 6]),
        max_step_tokens=random.choice([4, 8, 16, 32]),
        run_ahead=run_ahead,
        async_scheduling=run_ahead > 0 and random.random() < 0.7,
        runner=random.choice([1, 2]),
        zero_new_blocks=random.random() < 0.25,
        spec_tokens=0 if "spec" in silent else random.choice([0, 1, 2]),
        # A producer's blocks are freed at once, also with run-ahead, so it must not load then.
        role=random.choice(_ROLES[:-1] if run_ahead else _ROLES),
        failure_policy=random.choice(["recompute", "fail"]),
        host_slots=random.choice([4, 8, 16, 64]),
        trouble=random.choice([1, 1, 1, 5]),
        silent=silent,
    )


def with_fine_hashes(config: WorldConfig, random: Random) -> WorldConfig:
    """Maybe give the blocks of a world with one group several hashes each."""
    if len(config.groups) > 1 or random.random() < 0.5:
        return config
    return replace(config, hashes_per_block=random.choice([2, config.block_size]))


def with_states(config: WorldConfig, random: Random) -> WorldConfig:
    """Maybe give a world of several groups one of states, in the place of the last or beside the others.

    About half of these engines hand states over; their sizes decide which, so that the rest of a history is the
    same in both.
    """
    if len(config.groups) == 1 or random.random() < 0.4:
        return config
    kept = random.choice([config.groups[:-1], config.groups])
    return replace(
        config,
        groups=(*kept, STATE),
        hands_over_states=Random(repr(sizes_of(config))).random() < 0.5,
        num_blocks=config.num_blocks * (len(kept) + 1) // len(config.groups),
    )
