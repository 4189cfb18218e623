"""Features of a world that its sizes decide. A connector's claims say which of them are tried: ``draws``.

A seed stands for a history, and one more random draw, or other weights, would give every seed another history. So
none of these uses the world's ``Random``: the world's sizes decide whether it has a feature, and a world without
the feature stays as it was.
"""

from dataclasses import replace
from random import Random

from kv_sim.config import BUILTIN_ENGINE, STATE, Drafter, GroupConfig, Role, Stages, Stranger, WorldConfig
from kv_sim.subject import Subject, Trait


def sizes_of(config: WorldConfig) -> tuple[int, ...]:
    """The sizes that decide whether a world has a feature."""
    return config.num_blocks, config.max_running, config.max_step_tokens, config.host_slots, config.runner


def with_sessions(config: WorldConfig) -> WorldConfig:
    """Let sessions come to a third of the worlds; their sizes decide which.

    None come where states are kept and steps are scheduled before the last token is known: a state would have
    taken in the token that a session drops.
    """
    drawn = Random(repr(("sessions", sizes_of(config)))).random() < 1 / 3
    return replace(config, sessions=drawn and not (STATE in config.groups and config.async_scheduling))


def with_pauses(config: WorldConfig) -> WorldConfig:
    """Let a quarter of the engines pause now and then; their sizes decide which."""
    return replace(config, pauses=Random(repr(("pauses", sizes_of(config)))).random() < 1 / 4)


def with_images(config: WorldConfig) -> WorldConfig:
    """Let images come with prompts of a quarter of the worlds; their sizes decide which."""
    return replace(config, images=Random(repr(("images", sizes_of(config)))).random() < 1 / 4)


def with_stages(config: WorldConfig) -> WorldConfig:
    """Give the stages of most pipelines different layers; their sizes decide which."""
    if config.pp_size == 1:
        return config
    stages: tuple[Stages, ...] = ("alike", "more_later", "more_first", "groups_apart")
    return replace(config, stages=Random(repr(("stages", sizes_of(config)))).choice(stages))


def with_drafter(config: WorldConfig) -> WorldConfig:
    """Give three of five engines with drafts a draft model; their sizes decide which, and of what kind."""
    if not config.spec_tokens:
        return config
    drafters: tuple[Drafter, ...] = ("text", "text", "model", "eagle", "mtp")
    return replace(config, drafter=Random(repr(("drafter", sizes_of(config)))).choice(drafters))


def with_unequal_blocks(config: WorldConfig) -> WorldConfig:
    """Give the groups of half of the worlds that have several blocks of different sizes; their sizes decide which.

    Those of states are the largest, as in vLLM, which makes blocks larger until all pages have the same bytes. A
    world with a stranger that has blocks of another size is left as it is.
    """
    random = Random(repr(("unequal blocks", sizes_of(config))))
    if random.random() < 0.5 or len(config.groups) == 1 or config.is_fine or config.stranger == "blocks":
        return config
    most = random.choice([parts for parts in (2, 4) if config.block_size % parts == 0])
    places = [place for place, group in enumerate(config.groups) if group != STATE]
    chosen = random.sample(places, random.randint(1, min(len(places), len(config.groups) - 1)))
    groups = tuple(
        replace(group, parts=most) if place in chosen else group for place, group in enumerate(config.groups)
    )
    unequal = replace(config, groups=groups, hashes_per_block=most)
    span = unequal.blocks_per_span
    if STATE in groups:
        return replace(unequal, num_blocks=max(config.num_blocks, 5 * span))
    return replace(unequal, num_blocks=config.num_blocks * span // len(groups))


def with_tails(config: WorldConfig) -> WorldConfig:
    """Give more than half of the engines that hand over states finer hashes, and no windows, as sizes decide."""
    random = Random(repr(("tails", sizes_of(config))))
    if not config.hands_over_states or random.random() < 0.4:
        return config
    groups = (GroupConfig(), STATE)
    blocks = config.num_blocks * len(groups) // len(config.groups)
    hashes = random.choice([2, config.block_size])
    return replace(config, groups=groups, num_blocks=blocks, hashes_per_block=hashes)


def with_a_window_alone(config: WorldConfig) -> WorldConfig:
    """Let all layers of a sixth of the models with one group read a window only; the world's sizes decide which.

    None whose hits end within blocks.
    """
    random = Random(repr(("a window alone", sizes_of(config))))
    if len(config.groups) > 1 or config.is_fine or random.random() > 1 / 6:
        return config
    return replace(config, groups=(GroupConfig("sliding", random.choice([4, 5, 8, 11])),))


def with_loads(config: WorldConfig) -> WorldConfig:
    """Give a third of the engines no prefix cache, so that repeated prompts are loaded; their sizes decide which.

    Engines that keep states, or ends within blocks, are left out: they keep these for their prefix cache.
    """
    is_drawn = Random(repr(("loads", sizes_of(config)))).random() < 1 / 3
    if not is_drawn or STATE in config.groups or config.hashes_per_block > 1:
        return config
    return replace(config, prefix_caching=False)


def with_more_loads(config: WorldConfig, subject: Subject) -> WorldConfig:
    """Let most worlds of the built-in engine with several groups find little on the GPU; their sizes decide which.

    Engines keep states for their prefix cache, so they have one, of which they lose what they free, or half of it.
    Of peers enough engines have no cache already.
    """
    if config.engine != BUILTIN_ENGINE or len(config.groups) == 1 or subject.serves_peers:
        return config
    random = Random(repr(("more loads", sizes_of(config))))
    if random.random() > 4 / 5:
        return config
    config = replace(config, role="kv_both", host_slots=2 * config.blocks_per_span * config.host_slots)
    if STATE in config.groups:
        return replace(config, evicts=random.choice([1, 1, 2]))
    return replace(config, prefix_caching=False)


def with_failing_loads(config: WorldConfig) -> WorldConfig:
    """Let loads within steps fail in half of the worlds without a prefix cache; their sizes decide which.

    They have no run-ahead, since no engine could undo later steps that depend on such a load.
    """
    if config.prefix_caching or Random(repr(("failing loads", sizes_of(config)))).random() < 0.5:
        return config
    return replace(config, run_ahead=0, async_scheduling=False, silent=config.silent - {"fail"})


def with_own_cache(config: WorldConfig) -> WorldConfig:
    """Give two of three engines no prefix cache and twice the blocks; their sizes decide which."""
    if Random(repr(("own cache", sizes_of(config)))).random() < 1 / 3:
        return config
    return replace(config, prefix_caching=False, num_blocks=2 * config.num_blocks)


def with_trusted_router(config: WorldConfig) -> WorldConfig:
    """An engine that serves and pulls, with some room for blocks that are held until they are pulled."""
    return replace(config, role="kv_both", num_blocks=max(config.num_blocks, 24 * len(config.groups)))


def with_two_engines(config: WorldConfig) -> WorldConfig:
    """Two engines that serve each other, or of which one prefills for the other; the world's sizes decide which.

    A producer's blocks are freed at once, so an engine with run-ahead, which writes new blocks while an older step
    is under way, is no producer.
    """
    if config.run_ahead and (config.zero_new_blocks or config.hashes_per_block > 1):
        return _with_two(config, "kv_both")
    return _with_two(config, "kv_both", "kv_producer", "kv_consumer")


def with_producer_and_consumer(config: WorldConfig) -> WorldConfig:
    """Two engines, of which one prefills for the other; the world's sizes decide which.

    This is for connectors whose class has ``holds_and_pulls = False``: one engine can't do both.
    """
    if config.run_ahead:
        config = replace(config, zero_new_blocks=False, hashes_per_block=1)
    return _with_two(config, "kv_producer", "kv_consumer")


def _with_two(config: WorldConfig, *roles: Role) -> WorldConfig:
    """Two engines, of which the first has one of these roles.

    Their connectors aren't reset, since the result would depend on which is reset first. Resets are tested in
    worlds with one engine.
    """
    role = Random(repr(("roles", sizes_of(config)))).choice(roles)
    return replace(config, engines=2, role=role, silent=config.silent | {"reset_all"})


def with_strange_peer(config: WorldConfig) -> WorldConfig:
    """Let the second engine be a stranger in a quarter of the worlds; their sizes decide which and how it differs.

    It has the same block shape, since some connectors can pull from engines with another one.
    """
    random = Random(repr(("strange peers", sizes_of(config))))
    if random.random() < 3 / 4:
        return config
    kinds: tuple[Stranger, ...] = ("model", "path", "dtype")
    return replace(config, stranger=random.choice(kinds))


def with_little_room(config: WorldConfig, subject: Subject) -> WorldConfig:
    """Let a producer with run-ahead preempt: only there can a request be preempted whose last step is under way.

    Not if its router must be fair, since that must find room for every hold that it asks for.
    """
    runs_ahead = config.run_ahead > 0 and config.role == "kv_producer" and config.engines > 1
    if not runs_ahead or config.prefix_caching or Trait.TICKETS not in subject.traits:
        return config
    return replace(config, num_blocks=config.num_blocks // 2)


def with_shared_store(config: WorldConfig, subject: Subject) -> WorldConfig:
    """Two engines that store and load, in one store.

    In half of the worlds, if the connector claims to withstand it, the second is a stranger. Of some others one
    engine only stores, and the other only loads. Their sizes decide, and how a stranger differs.
    """
    random = Random(repr(("strangers", sizes_of(config))))
    kinds: list[Stranger] = ["model", "model", "path", "blocks"]
    kinds += ["ranks"] if Trait.RANKS in subject.traits else []
    is_strange = random.random() < 0.5 and Trait.STRANGERS in subject.traits
    kind = random.choice(kinds) if is_strange else "none"
    if kind == "model" and Random(repr(("types", sizes_of(config)))).random() < 0.5:
        kind = "dtype"
    roles: tuple[Role, ...] = ("kv_both", "kv_both", "kv_producer", "kv_consumer")
    is_parted = kind == "none" and not config.run_ahead  # a producer frees its blocks at once
    role = Random(repr(("parted", sizes_of(config)))).choice(roles) if is_parted else "kv_both"
    return replace(config, engines=2, role=role, stranger=kind)
