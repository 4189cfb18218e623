"""Prompts that differ in the last token of a chunk must not be taken for each other.

By chance two requests hardly ever share all of a chunk but its end. So at rest one arrives that ends with a chunk,
and then one with another last token in that chunk, and a token more. If the key of a chunk leaves out its end, the
second finds the first one's chunk: ``served`` says that nobody has computed it, or a slot has wrong bytes.

The second is repeated. Where only one of several groups has such keys, the others don't find the first one's
chunks; but then that group's chunk of the second isn't stored, since it seems to be there.
"""

from collections.abc import Callable

from kv_sim.checkers.asking import ask_again
from kv_sim.engine.request_spec import RequestSpec
from kv_sim.site import Site
from kv_sim.subject import Trait


def check_almost_equal(site: Site, settle: Callable[[], bool]) -> None:
    """Let two requests arrive whose tokens of their own begin with the last token of a chunk."""
    config = site.config
    chunk_tokens = site.subject.blocks_per_chunk * config.block_size
    if not site.engine.outcome.ended:
        return  # else what any request shows would need none in the history that is left of a failure
    if Trait.KEEPS not in site.subject.traits or chunk_tokens + 2 > config.longest_request:
        return
    if 1 + config.spec_tokens > config.max_step_tokens:
        return  # the second has one token to compute, which an engine with drafts pads with them
    stored = site.subject.keeps_from
    for name, own_tokens, times in (("almost-1", 1, stored), ("almost-2", 2, stored + 1)):
        for _ in range(times):
            if not site.engine.has_work:  # else one never ends, which is LIVENESS
                ask_again(site, RequestSpec(name, 0, chunk_tokens - 1, own_tokens, 1, 1), settle)
