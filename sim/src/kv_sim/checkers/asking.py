"""Repeats requests at an engine at rest, to see which tokens its connector still finds."""

from collections.abc import Callable

from kv_sim.engine.engine import Engine
from kv_sim.engine.request import SimRequest
from kv_sim.engine.request_spec import RequestSpec
from kv_sim.memory.copy import State
from kv_sim.site import Site


def ask_again(site: Site, spec: RequestSpec, settle: Callable[[], bool]) -> tuple[int, SimRequest]:
    """Repeat a request with an empty GPU cache. Returns how many of its tokens were found."""
    engine = site.engine
    engine.scheduler.blocks.block_pool.reset()
    engine.served.found.pop(spec.request_id, None)
    request = engine.add(spec)
    settle()
    return engine.served.found.get(spec.request_id, 0), request


def count_failed(engine: Engine) -> int:
    """How many copies have failed."""
    return sum(copy.state is State.FAILED for device in engine.devices for copy in device.copies.ended)


def proof_blocks(site: Site) -> int:
    """How many blocks at its end a match may leave out: a draft model's KV in them depends on later tokens."""
    return site.subject.blocks_per_chunk if site.config.drops_last_block else 0
