"""HITS, at rest: a connector stops finding what can't be loaded.

A restart may empty host slots, and every load from one of them fails until something is stored there again. A
connector may try such a load once more, since the copy might have been the reason. But if it finds the chunk for
every request that comes, each of them waits for a load that fails, and the chunk is never stored again.
"""

from collections.abc import Callable
from typing import Final

from kv_sim.checkers.asking import ask_again
from kv_sim.engine.request_spec import RequestSpec
from kv_sim.site import Site
from kv_sim.violation import Invariant

MOST_TRIES: Final = 4
"""How many requests may be told, one after the other, to load from a slot that is empty."""


def check_given_up(site: Site, spec: RequestSpec, settle: Callable[[], bool]) -> None:
    """Repeat a request whose load has failed, until its loads don't fail any more."""
    devices = site.engine.devices
    before = [device.copies.failed_slots.copy() for device in devices]
    for _ in range(MOST_TRIES):
        ask_again(site, spec, settle)
        if site.engine.has_work:
            return  # one never ends, which is LIVENESS
    for device, was in zip(devices, before, strict=True):
        for slot, count in device.copies.failed_slots.items():
            if count - was[slot] >= MOST_TRIES:
                site.referee.fail(
                    Invariant.HITS,
                    f"request {spec.request_id} is repeated {MOST_TRIES} times at rest, after its load from host "
                    f"slot {slot} of rank {device.rank} failed, and each time a load from there fails again: a "
                    "chunk that can't be loaded must not be found for ever",
                )
