"""The most recent requests must be found, even if there was not room for everything.

This holds for a subject that evicts the least recently used chunks. A request arrives, then some with new prompts,
then all of them again: if they fit together, each must be found completely. If one more chunk is stored, a prompt
may lose its end, but not its beginning, without which the rest is useless.

With sliding windows less is stored: blocks that left the window may never have been. But a request that begins
with a whole earlier prompt must find that prompt: so each new prompt is repeated with one more token. Of states
an engine keeps few, but that at the end of a full block in which a prompt ends is among them.
"""

from collections.abc import Callable
from dataclasses import replace

from kv_sim.checkers.asking import ask_again, count_failed, proof_blocks
from kv_sim.config import BUILTIN_ENGINE, STATE
from kv_sim.engine.request_spec import RequestSpec
from kv_sim.site import Site
from kv_sim.subject import Trait
from kv_sim.violation import Invariant


def check_recent(site: Site, spec: RequestSpec, settle: Callable[[], bool]) -> None:
    """Check that a request and two with new prompts are found completely, if there is room for them.

    The new prompts, one of them short, end with a full chunk and are repeated with one more token, since a hit
    ends before the last token.
    """
    engine, config = site.engine, site.config
    if any(device.copies.running for device in engine.devices):
        return  # lost copies keep their slots
    chunk_tokens = site.subject.blocks_per_chunk * config.block_size
    prompt = spec.shared_tokens + spec.own_tokens
    room = config.host_slots // site.subject.blocks_per_chunk - prompt // chunk_tokens
    room = min(room, (config.longest_request - 2) // chunk_tokens)
    if room < 1:
        return
    failed = count_failed(engine)
    sizes = {"unseen": room - 1, "short": 1} if room > 1 else {"short": 1}
    unseen = [RequestSpec(name, 0, 0, chunks * chunk_tokens, 1, 1) for name, chunks in sizes.items()]
    for one in (spec, *unseen):
        for _ in range(site.subject.keeps_from):
            ask_again(site, one, settle)
            if engine.has_work:
                return  # one never ends, which is LIVENESS
    longer = [(replace(one, own_tokens=one.own_tokens + 1), one.own_tokens) for one in unseen]
    proof_tokens = proof_blocks(site) * config.block_size
    for again, most in ((spec, (prompt - 1) // chunk_tokens * chunk_tokens), *longer):
        least = max(0, most - proof_tokens)
        found, request = ask_again(site, again, settle)
        if engine.has_work:
            return
        if found < least and count_failed(engine) == failed:
            site.referee.fail(
                Invariant.HITS,
                f"request {request.request_id} is repeated at rest: {found} of its first {least} tokens are "
                f"found, but {spec.request_id} and new requests of {room} chunks were the last to be "
                f"computed, and all of them fit in {config.host_slots} host slots",
            )
    least = (prompt - 1) // chunk_tokens * chunk_tokens - chunk_tokens - proof_tokens
    if least > 0 and count_failed(engine) == failed:
        _check_beginning(site, spec, least, settle)


def _check_beginning(site: Site, spec: RequestSpec, least: int, settle: Callable[[], bool]) -> None:
    """One more chunk is stored, then the least recently used request is repeated."""
    engine, failed = site.engine, count_failed(site.engine)
    more = RequestSpec("one-more", 0, 0, site.subject.blocks_per_chunk * site.config.block_size, 1, 1)
    for _ in range(site.subject.keeps_from):
        ask_again(site, more, settle)
        if engine.has_work:
            return  # it never ends, which is LIVENESS
    found, request = ask_again(site, spec, settle)
    if found < least and count_failed(engine) == failed and not engine.has_work:
        site.referee.fail(
            Invariant.HITS,
            f"request {request.request_id} is repeated at rest: {found} of its first {least} tokens are found; "
            "all of it was found before one more chunk was stored, for which the prompt's end should be evicted, "
            "not its beginning",
        )


def check_windows(site: Site, settle: Callable[[], bool]) -> None:
    """Check new prompts one after the other: each is repeated at once with one more token.

    They end with a full chunk, so a connector that stores them when they end still has their last window: unless
    that window begins after the first block of a chunk, since then the chunk's beginning is gone.
    """
    engine, config, subject = site.engine, site.config, site.subject
    chunk_tokens = subject.blocks_per_chunk * config.block_size
    if loses_windows(site) or config.role != "kv_both" or config.drops_last_block:
        return  # with a draft model a hit ends a block earlier, and what a window had there may be gone
    if STATE in config.groups and config.engine != BUILTIN_ENGINE:
        return  # vLLM's keeps by default only the state where a repeated prompt goes on: before its last token
    tail = len(config.groups) if config.has_tails else 0  # the new prompt has one, too
    room = (config.host_slots - tail) // subject.blocks_per_chunk // config.blocks_per_span
    most = min(room, (config.longest_request - 2) // chunk_tokens)
    if not most or any(device.copies.running for device in engine.devices):
        return  # lost copies keep their slots
    failed = count_failed(engine)
    for chunks in sorted({1, (most + 1) // 2, most}):
        if not subject.evicts_oldest and not _empty(site):
            return
        new = RequestSpec(f"unseen-{chunks}", 0, 0, chunks * chunk_tokens, 1, 1)
        for _ in range(subject.keeps_from):
            ask_again(site, new, settle)
        found, request = ask_again(site, replace(new, own_tokens=new.own_tokens + 1), settle)
        if engine.has_work:
            return  # one never ends, which is LIVENESS
        if found < new.own_tokens and count_failed(engine) == failed:
            site.referee.fail(
                Invariant.HITS,
                f"request {request.request_id} is repeated at rest: {found} of its first {new.own_tokens} tokens "
                f"are found, but it has just computed them all, and {room} chunks of each group fit in "
                f"{config.host_slots} host slots",
            )


def loses_windows(site: Site) -> bool:
    """Whether a window that ends with a chunk begins behind the first block of one. States have only an end."""
    config, per_chunk = site.config, site.subject.blocks_per_chunk
    windows = [
        (config.tokens_of(place), group.window)
        for place, group in enumerate(config.groups)
        if group.window and group != STATE
    ]
    return any((1 - window) % (per_chunk * size) >= size for size, window in windows)


def _empty(site: Site) -> bool:
    """Have the connector forget everything, if it can."""
    return Trait.RESET in site.subject.traits and bool(site.engine.reset(running=False, connector=True))
