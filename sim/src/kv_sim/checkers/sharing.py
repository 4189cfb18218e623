"""HITS, if engines share a store: each finds the chunks that another has stored, once both have taken a few steps.

A connector may learn in a later step that the last copy of a store has ended, and may look only now and then for
chunks of other engines. An idle engine takes no steps. So before requests are repeated, each engine gets a few
requests of a single token. They fill no block, unless a group's blocks have one token: then room is left for them.

Nothing is demanded across engines once one of them was reset: it may find none of the others' chunks from then on,
since it can't tell which are from before the reset, and the reset may have emptied the store for all.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from kv_sim.checkers.recent import loses_windows
from kv_sim.config import STATE
from kv_sim.engine.request_spec import RequestSpec
from kv_sim.memory.copy import State
from kv_sim.site import Site
from kv_sim.violation import Invariant

ROUNDS: Final = 3
"""How many such requests each engine gets, one after the other."""


def all_of(site: Site) -> list[Site]:
    """An engine, and those that share its store."""
    return [site, *site.shares_with]


def stores_of(site: Site) -> list[Site]:
    """The engines whose stored chunks an engine must find."""
    was_reset = any(one.engine.served.resets for one in all_of(site))
    return [site] if was_reset else all_of(site)


def told_at(site: Site) -> set[bytes]:
    """The blocks that are stored according to the events of an engine and of those that share its store."""
    for one in all_of(site):
        one.engine.take_events()
    return {key[-1] for one in all_of(site) for key in one.engine.mirror.blocks}


def let_all_hear(sites: Sequence[Site], settle: Callable[[], bool]) -> bool:
    """Let each engine take a few steps. False: one of them never comes to rest."""
    for number in range(ROUNDS):
        for site in sites:
            if any(one.engine.has_work for one in sites):
                return False
            site.engine.add(RequestSpec(f"heard-{number}", 0, 0, 1, 1, 1))
            settle()
    return not any(site.engine.has_work for site in sites)


def check_lent(site: Site, settle: Callable[[], bool]) -> None:
    """Compute a new prompt at this engine, and check that another engine finds it, with one more token.

    It is the newest prompt, so there is room for it if the store evicts the least recently used chunks.
    """
    sites = stores_of(site)
    for other in sites[1:] if site.subject.evicts_oldest and site.config.role != "kv_consumer" else ():
        tokens = min(map(_most_tokens, (site, other)))
        if not tokens or any(device.copies.running for one in sites for device in one.engine.devices):
            return
        failed = _count_failed(sites)
        new = RequestSpec(f"lent-{site.place.number}", 0, 0, tokens, 1, 1)
        for _ in range(site.subject.keeps_from):
            site.engine.scheduler.blocks.block_pool.reset()
            site.engine.add(new)
            settle()
        if not let_all_hear(sites, settle):
            return  # one never ends, which is LIVENESS
        other.engine.scheduler.blocks.block_pool.reset()
        other.engine.served.found.pop(new.request_id, None)
        other.engine.add(replace(new, own_tokens=tokens + 1))
        settle()
        found = other.engine.served.found.get(new.request_id, 0)
        least = tokens
        if site.config.drops_last_block:
            least -= site.subject.blocks_per_chunk * site.config.block_size
        if found < least and _count_failed(sites) == failed and not other.engine.has_work:
            other.referee.fail(
                Invariant.HITS,
                f"request {new.request_id} arrives at rest: {found} of its first {least} tokens are found, but "
                f"engine {site.place.number}, which shares the store, has just computed them all",
            )


def _most_tokens(site: Site) -> int:
    """The longest prompt of full chunks that must be found completely; 0: windows or states may be incomplete."""
    config, subject = site.config, site.subject
    chunk_tokens = subject.blocks_per_chunk * config.block_size
    has_windows = any(group.window for group in config.groups)
    if STATE in config.groups or loses_windows(site) or (has_windows and config.drops_last_block):
        return 0
    sizes = [config.tokens_of(place) * subject.blocks_per_chunk for place in range(len(config.groups))]
    heard = ROUNDS * sizes.count(1)
    room = (config.host_slots - heard) // subject.blocks_per_chunk // config.blocks_per_span
    return min(room, (config.longest_request - 2) // chunk_tokens) * chunk_tokens


def _count_failed(sites: Sequence[Site]) -> int:
    devices = [device for site in sites for device in site.engine.devices]
    return sum(copy.state is State.FAILED for device in devices for copy in device.copies.ended)
