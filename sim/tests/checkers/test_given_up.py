"""HITS, where a load fails at rest: what can't be loaded isn't found for ever."""

from collections import Counter
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from kv_sim_notes import Notes

from kv_sim.checkers import given_up
from kv_sim.checkers.given_up import MOST_TRIES, check_given_up
from kv_sim.engine.request_spec import RequestSpec

SPEC = RequestSpec("r1", 0, 8, 0, 1, 1)


def judged(monkeypatch: pytest.MonkeyPatch, tries: Sequence[Sequence[int]], *, stays: bool = False) -> list[str]:
    """What is said if requests, one after the other, load from these slots of the second rank, and fail."""
    asked = iter(tries)
    failed = Counter({3: 9})  # before all else came to rest
    devices = [
        SimpleNamespace(rank=rank, copies=SimpleNamespace(failed_slots=slots))
        for rank, slots in enumerate((Counter[int](), failed))
    ]
    site: Any = SimpleNamespace(engine=SimpleNamespace(devices=devices, has_work=False), referee=Notes())

    def ask_again(one: Any, spec: RequestSpec, settle: Callable[[], bool]) -> None:
        assert (one, spec) == (site, SPEC)
        failed.update(next(asked))
        site.engine.has_work = stays

    monkeypatch.setattr(given_up, "ask_again", ask_again)
    check_given_up(site, SPEC, lambda: True)
    told: list[str] = site.referee.told
    return told


def test_a_chunk_that_fails_whoever_loads_it_is_found_too_often(monkeypatch: pytest.MonkeyPatch) -> None:
    assert judged(monkeypatch, [[3]] * MOST_TRIES) == [
        "HITS  request r1 is repeated 4 times at rest, after its load from host slot 3 of rank 1 failed, and each "
        "time a load from there fails again: a chunk that can't be loaded must not be found for ever"
    ]


@pytest.mark.parametrize(
    "tries",
    [
        [[]] * MOST_TRIES,
        [[3], *[[]] * (MOST_TRIES - 1)],  # it was tried once more
        [*[[3]] * (MOST_TRIES - 1), []],
        [[slot] for slot in range(MOST_TRIES)],  # each time it gets a chunk further
    ],
)
def test_a_connector_may_try_again(monkeypatch: pytest.MonkeyPatch, tries: list[list[int]]) -> None:
    assert judged(monkeypatch, tries) == []


def test_nothing_is_said_of_a_request_that_never_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    assert judged(monkeypatch, [[3] * MOST_TRIES], stays=True) == []
