"""HITS: a connector finds exactly what it has stored, no more and no less.

It has two halves, both for subjects that claim ``Trait.KEEPS``. *No more* is judged at every match (``served``):
each block of a hit was computed since the last reset that reported success. (If a subject only claims
``Trait.RESET``: nothing from before a reset is a hit.) *No less* is judged here, at rest: requests that ended
are repeated, at an engine whose own prefix cache is empty, and the longest possible prefix must be found. That
prefix is known if no copy failed and the host had room for everything. Otherwise the requests are repeated
anyway, for the other checkers. Then the connector is reset and the requests are repeated again: now *no more*
catches a connector that still serves what it had. KV events are judged here as well (ACCOUNTING), since only a
match says what can be found.

If there was not room for everything, ``recent`` still checks the most recent requests.

Engines that share a store are each asked for what any of them has stored (``sharing``).
"""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property

from kv_sim.checkers import sharing
from kv_sim.checkers.asking import ask_again, count_failed, proof_blocks
from kv_sim.checkers.given_up import check_given_up
from kv_sim.checkers.recent import check_recent, check_windows
from kv_sim.engine.request import SimRequest
from kv_sim.engine.request_spec import RequestSpec
from kv_sim.memory.copy import State
from kv_sim.site import Site
from kv_sim.subject import Trait
from kv_sim.violation import Invariant

MOST_PROBES = 4
"""How many requests are repeated. Most prompts are prefixes of others."""


@dataclass(frozen=True)
class Again(RequestSpec):
    """A session that is repeated as one request, with the whole prompt that it had in the end."""

    told: tuple[int, ...] = ()

    @cached_property
    def prompt(self) -> tuple[int, ...]:
        own = super().prompt[self.shared_tokens :]
        return (*self.told, *own)


def check_kept(site: Site, settle: Callable[[], bool]) -> RequestSpec | None:
    """Repeat requests, and check that their stored tokens are found. ``settle`` lets all requests end.

    Returns a request for ``check_forgotten``, of which nothing may be found after a reset.
    """
    engine, traits = site.engine, site.subject.traits
    if Trait.KEEPS not in traits:
        return None
    if any(group.window for group in site.config.groups):
        if not engine.has_work:
            check_windows(site, settle)
        return None
    ended = [request for one in sharing.all_of(site) for request in one.engine.outcome.ended]
    room = _room_for_all(site, ended) if _nothing_was_left_out(site) else None
    is_complete = room is not None
    stored = {name for one in sharing.stores_of(site) for name in _stored_at(one)} if is_complete else set()
    probes = _probes(ended, site.config.longest_request)[: MOST_PROBES if is_complete else MOST_PROBES // 2]
    tells = _tells(site)
    for spec in probes:
        told = sharing.told_at(site)
        failed = count_failed(engine)
        found, request = ask_again(site, spec, settle)
        _compare(site, request, found, stored, room)
        if count_failed(engine) > failed:
            check_given_up(site, spec, settle)
        elif tells:
            _compare_events(site, request, found, told)
    if site.subject.evicts_oldest and site.config.role == "kv_both" and probes and not engine.has_work:
        check_recent(site, probes[0], settle)
    return probes[0] if probes else None


def check_forgotten(site: Site, spec: RequestSpec, settle: Callable[[], bool]) -> None:
    """Reset the connector, and repeat the request: ``served`` judges the tokens that are found."""
    engine = site.engine
    is_over = Trait.RESET in site.subject.traits and not engine.has_work
    if is_over and engine.reset(running=False, connector=True):
        ask_again(site, spec, settle)


def _tells(site: Site) -> bool:
    """Whether the events so far say what must be found. A producer may store chunks that it doesn't find.

    A reset at one of several engines removes chunks that others stored, and only they would send events of it.
    """
    was_reset = any(one.engine.served.resets for one in sharing.all_of(site))
    is_known = site.config.role != "kv_producer" and not (site.subject.shares_store and was_reset)
    return Trait.EVENTS in site.subject.traits and is_known


def _stored_at(site: Site) -> set[bytes]:
    """The blocks that an engine has stored if all of its stores succeeded."""
    ended, served = site.engine.outcome.ended, site.engine.served
    times = Counter(name for request in ended if served.is_fair(request) for name in request.prompt_hashes)
    return {name for name, count in times.items() if count >= site.subject.keeps_from}


def _nothing_was_left_out(site: Site) -> bool:
    """Whether every copy succeeded, here and at engines that share the store."""
    if site.config.role != "kv_both":
        return False  # a consumer need not store, a producer need not load
    if site.engine.served.strangers:
        return False  # how much room they take is unknown here
    return not any(
        copies.running
        or copies.restarts
        or any(copy.state is not State.DONE or copy.was_lost for copy in copies.ended)
        for one in sharing.all_of(site)
        for copies in (device.copies for device in one.engine.devices)
    )


def _room_for_all(site: Site, ended: Iterable[SimRequest]) -> int | None:
    """Host slots that all chunks of these requests take at most. None: there aren't so many."""
    # Two chunks that differ only in their last block each take slots for the blocks before it.
    size = site.subject.blocks_per_chunk
    chunks = {chunk for request in ended for turn in request.known_hashes() for chunk in turn[size - 1 :: size]}
    # A copy may still use slots from before a reset, so each reset may need as many slots again.
    slots = len(chunks) * size * (1 + sum(one.engine.served.resets for one in sharing.all_of(site)))
    return slots if slots <= site.config.host_slots else None


def _probes(ended: Iterable[SimRequest], most_tokens: int) -> list[RequestSpec]:
    """Requests to repeat: long ones first, and none whose prompt is the beginning of another's.

    Every second one gets one more token, if there is room: a hit ends before the last token, so only then must a
    block at the prompt's end be found.
    """
    covered: set[bytes] = set()
    probes: list[RequestSpec] = []
    for request in sorted(ended, key=lambda r: -r.num_prompt_tokens):
        hashes = request.prompt_hashes
        if hashes and hashes[-1] not in covered:
            covered.update(hashes)
            again = replace(_whole(request), output_tokens=1, max_tokens=1, skip_reading_prefix_cache=False)
            if len(probes) % 2 and request.num_prompt_tokens + 2 <= most_tokens:
                again = replace(again, own_tokens=again.own_tokens + 1)
            probes.append(again)
    return probes


def _whole(request: SimRequest) -> RequestSpec:
    """The request, with its last prompt from the beginning."""
    spec = request.spec
    if not request.turn:
        return replace(spec, turns=None)
    told = tuple(request.prompt_token_ids)
    return Again(
        spec.request_id,
        spec.conversation,
        len(told),
        0,
        spec.output_tokens,
        spec.max_tokens,
        salt=spec.salt,
        adapter=spec.adapter,
        image=spec.image,
        image_at=spec.image_at,
        told=told,
    )


def _compare(site: Site, request: SimRequest, found: int, stored: set[bytes], room: int | None) -> None:
    size = site.config.block_size
    hashes = request.prompt_hashes[: (request.num_prompt_tokens - 1) // size]
    run = next((index for index, block_hash in enumerate(hashes) if block_hash not in stored), len(hashes))
    run -= run % site.subject.blocks_per_chunk
    run = max(0, run - proof_blocks(site))
    if found < run * size:
        site.referee.fail(
            Invariant.HITS,
            f"request {request.request_id} is repeated at rest: {found} of its {request.num_prompt_tokens} tokens "
            f"are found, but earlier requests computed the first {run * size} and ended well, no copy failed, and "
            f"there was room for all: at most {room} of {site.config.host_slots} host slots were needed",
        )


def _compare_events(site: Site, request: SimRequest, found: int, told: set[bytes]) -> None:
    """Check that by the events all found blocks are stored, and the first block that isn't found is not."""
    size, factor = site.config.block_size, site.subject.blocks_per_chunk
    hashes = request.prompt_hashes[: (request.num_prompt_tokens - 1) // size]
    for index in range(factor - 1, len(hashes), factor):  # an event names a chunk by its last block
        block_hash, is_found = hashes[index], (index + 1) * size <= found
        if is_found != (block_hash in told) and not (site.config.drops_last_block and not is_found):
            has, says = ("is found", "is not stored") if is_found else ("is not found", "is stored")
            site.referee.fail(
                Invariant.ACCOUNTING,
                f"request {request.request_id} is repeated at rest: block {index} of its prompt {has}, but "
                f"according to the events so far it {says}",
            )
        if not is_found:
            return
