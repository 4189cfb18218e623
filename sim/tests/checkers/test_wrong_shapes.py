"""An answer in a wrong shape is the connector's fault, and is told in the words of the contract."""

import re
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from kv_api import (
    AllBlocksCleared,
    BlockRemoved,
    CacheHitSource,
    ConfigError,
    KVConnectorMetadata,
    KVConnectorTransferResults,
    TwoSidedConnector,
)
from kv_sim.checkers.answers import SHAPES, complaint, is_match
from kv_sim.config import GroupConfig, WorldConfig
from kv_sim.examples.later import LaterScheduler, LaterWorker
from kv_sim.examples.memory import MemoryConnector
from kv_sim.fuzz import Failure, run_seed
from kv_sim.subject import Subject, Trait
from kv_sim.violation import Invariant, Violation
from kv_sim.world import World

END = "a pair: whether its blocks are held, True or False, and a dict or None"
EVENTS = r"KV events, whose block_hashes are lists of bytes or ints; \(\) for none"
SETS = "KVConnectorTransferResults, whose fields are sets of request ids"
FIELDS = ("finished_sending", "finished_recving", "failed_recving")
GROUPS = frozenset({Trait.GROUPS})


class Said:
    """Has the methods of all that a worker says to the scheduler's side, by their names alone."""

    def add_events(self, events: Any) -> None: ...
    def aggregate(self, other: Any = None) -> Any: ...
    def get_all_events(self) -> Any: ...
    def increment_workers(self, count: int = 1) -> None: ...
    def is_empty(self) -> bool:
        return True

    def reduce(self) -> Any: ...


class Moved(BlockRemoved):
    """An event of a connector's own."""


class Odd(MemoryConnector):
    """Answers one question as it is told to."""


class OneGroupScheduler(LaterScheduler):
    def request_finished(self, request: Any, block_ids: Any) -> Any:
        super().request_finished(request, block_ids)


class OneGroup(TwoSidedConnector):
    """Is no ``SupportsHMA``."""

    scheduler_class = OneGroupScheduler
    worker_class = LaterWorker


def first_failure(seeds: int = 20, without: frozenset[Invariant] = frozenset()) -> Failure | None:
    runs = (run_seed(Subject("Odd", __name__, traits=GROUPS), seed, without=without) for seed in range(seeds))
    return next((run.failure for run in runs if run.failure is not None), None)


@pytest.mark.once
@pytest.mark.parametrize(
    ("name", "answer", "told"),
    [
        *(
            ("get_num_new_matched_tokens", answer, rf"request r\d: \w+\(…, \d+\) answered {shown}")
            for answer, shown in (
                (None, r"None, which is no pair \(tokens, is asynchronous\)"),
                (0, r"0, which is no pair \(tokens, is asynchronous\)"),
                ((0, False, 1), r"\(0, False, 1\), which is no pair \(tokens, is asynchronous\)"),
                ((0, None), r"\(0, None\), whose second part is neither True nor False"),
                (("0", False), r"\('0', False\), whose first part is neither an int of 0 or more nor None"),
            )
        ),
        *(
            ("request_finished_all_groups", answer, f"scheduler side, {{}} answered {shown}, expected {END}")
            for answer, shown in (
                (None, "None"),
                (True, "True"),
                ((False, None, None), r"\(False, None, None\)"),
                ((None, None), r"\(None, None\)"),
                ([False, None], r"\[False, None\]"),
                ((False, 1), r"\(False, 1\)"),
            )
        ),
        (
            "get_external_cache_hit_sources",
            None,
            "scheduler side, {} answered None, expected a dict of whole numbers of tokens",
        ),
        (
            "get_external_cache_hit_sources",
            {CacheHitSource.HOST: "4"},
            "scheduler side, {} answered {{.*: '4'}}, expected a dict of whole numbers of tokens",
        ),
        ("get_transfer_results", None, f"worker 0 side, {{}} answered None, expected {SETS}"),
        (
            "get_transfer_results",
            (set(), set()),
            rf"worker 0 side, {{}} answered \(set\(\), set\(\)\), expected {SETS}",
        ),
        (
            "get_transfer_results",
            KVConnectorTransferResults(failed_recving=None),  # type: ignore[arg-type]
            f"worker 0 side, {{}} answered KVConn.*, expected {SETS}",
        ),
        (
            "get_transfer_results",
            KVConnectorTransferResults({1}),  # type: ignore[arg-type]
            f"worker 0 side, {{}} answered KVConn.*, expected {SETS}",
        ),
        (
            "get_block_ids_with_load_errors",
            None,
            "worker 0 side, {} answered None, expected a set of block ids",
        ),
        (
            "get_block_ids_with_load_errors",
            {"4"},
            "worker 0 side, {} answered {{'4'}}, expected a set of block ids",
        ),
        ("get_finished_count", "2", "scheduler side, {} answered '2', expected None or a whole number, 0 or more"),
        ("get_finished_count", -1, "scheduler side, {} answered -1, expected None or a whole number, 0 or more"),
        (
            "get_finished_count",
            True,
            "scheduler side, {} answered True, expected None or a whole number, 0 or more",
        ),
        (
            "build_connector_meta",
            None,
            "scheduler side, {} answered None, expected the step's KVConnectorMetadata",
        ),
        ("get_kv_connector_stats", "7", "worker 0 side, {} answered '7', expected KVConnectorStats or None"),
        (
            "get_kv_connector_kv_cache_events",
            [],
            r"worker 0 side, {} answered \[\], expected KVConnectorKVEvents or None",
        ),
        (
            "build_connector_worker_meta",
            {"a": 1},
            "worker 0 side, {} answered {{'a': 1}}, expected KVConnectorWorkerMetadata or None",
        ),
        *(
            ("take_events", answer, f"scheduler side, {{}} answered {shown}, expected {EVENTS}")
            for answer, shown in (
                (None, "None"),
                (7, "7"),
                ("ab", "'ab'"),
                (b"ab", "b'ab'"),
                ((1,), r"\[1\]"),
                ([BlockRemoved(b"ab", None)], r"\[BlockRemoved\(block_hashes=b'ab', .*\)\]"),  # type: ignore[arg-type]
                ([BlockRemoved(None, None)], r"\[BlockRemoved\(block_hashes=None, .*\)\]"),  # type: ignore[arg-type]
            )
        ),
    ],
)
def test_it_is_a_violation_and_names_the_method_and_the_answer(
    name: str, answer: Any, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Odd, name, lambda *args: answer)
    failure = first_failure()
    assert failure is not None and failure.violation.invariant is Invariant.PROTOCOL
    assert re.fullmatch(told.format(name), failure.violation.message), failure.violation.message
    first_failure(6, frozenset({Invariant.PROTOCOL}))  # nothing is raised: the history ends, or goes on without


def test_what_two_workers_say_has_to_become_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who changes itself in ``aggregate`` and forgets to answer itself, says nothing as soon as there are two."""
    subject, config = Subject("Odd", __name__), WorldConfig(tp_size=2)
    for name in ("build_connector_worker_meta", "get_kv_connector_stats"):
        with monkeypatch.context() as patched:
            patched.setattr(Odd, name, lambda *args: Said())
            patched.setattr(Said, "reduce", lambda self: {})
            world = World(config, subject)
            with pytest.raises(Violation) as caught:
                world.run(Random(0), 20)
        assert str(caught.value) == (
            "PROTOCOL  Said.aggregate answered None, expected the reports of two workers as one"
        )


def test_a_connector_of_one_group_ends_requests_by_another_method() -> None:
    subject = Subject("OneGroup", __name__, traits=frozenset())
    failures = (run_seed(subject, seed).failure for seed in range(20))
    failure = next(failure for failure in failures if failure is not None)
    assert failure.violation.message == f"scheduler side, request_finished answered None, expected {END}"


def test_nor_is_it_driven_with_several() -> None:
    groups = (GroupConfig(), GroupConfig("sliding", 8))
    with pytest.raises(ConfigError, match=r"^connector 'OneGroup' .*: it supports one KV cache group only"):
        World(WorldConfig(groups=groups), Subject("OneGroup", __name__))


@pytest.mark.parametrize(
    ("name", "answers"),
    [
        ("request_finished", [(True, None), (False, {}), (False, {"a": 1})]),
        ("get_external_cache_hit_sources", [{}, {CacheHitSource.HOST: 4}]),
        (
            "get_transfer_results",
            [
                KVConnectorTransferResults(),
                KVConnectorTransferResults({"r"}, {"s"}, {"s"}),
                KVConnectorTransferResults(*(frozenset({name}) for name in "rst")),  # type: ignore[arg-type]
                KVConnectorTransferResults(None, {"s"}),  # type: ignore[arg-type]
                KVConnectorTransferResults({"r"}, None),  # type: ignore[arg-type]
            ],
        ),
        ("get_block_ids_with_load_errors", [set(), frozenset({1, 2})]),
        ("get_finished_count", [None, 0, 2]),
        ("build_connector_meta", [KVConnectorMetadata()]),
        ("get_kv_connector_stats", [None, Said()]),
        ("get_kv_connector_kv_cache_events", [None, Said()]),
        ("build_connector_worker_meta", [None, Said()]),
        ("take_events", [[], [AllBlocksCleared(), BlockRemoved([b"a", 1], None), Moved((b"a", 1), None)]]),  # type: ignore[arg-type]
    ],
)
def test_what_the_contract_allows_has_the_shape(name: str, answers: list[Any]) -> None:
    assert all(SHAPES[name].holds(answer) for answer in answers)


@pytest.mark.parametrize(
    ("name", "answers"),
    [
        ("request_finished", [None, (True,), [True, None], (1, None), (None, {}), (True, None, None), (True, [])]),
        ("get_external_cache_hit_sources", [None, [], {CacheHitSource.HOST: None}]),
        (
            "get_transfer_results",
            [
                None,
                ({"r"}, {"s"}, set()),
                *(KVConnectorTransferResults(**{name: wrong}) for name in FIELDS for wrong in ({1}, ["r"], "r")),
                KVConnectorTransferResults(failed_recving=None),  # type: ignore[arg-type]
            ],
        ),
        ("get_block_ids_with_load_errors", [None, [1], {"1"}, {1.0}]),
        ("get_finished_count", [-1, True, 1.0, "1"]),
        ("build_connector_meta", [None]),
        ("get_kv_connector_stats", [{}, ()]),
        ("get_kv_connector_kv_cache_events", [[], ()]),
        ("build_connector_worker_meta", [{}, "a"]),
        ("take_events", [None, (), [None], [AllBlocksCleared(), None], [BlockRemoved([None], None)]]),  # type: ignore[list-item]
    ],
)
def test_what_the_contract_does_not_allow_has_not(name: str, answers: list[Any]) -> None:
    assert not [answer for answer in answers if SHAPES[name].holds(answer)]


@pytest.mark.parametrize(
    ("name", "methods"),
    [
        ("get_kv_connector_stats", ["aggregate", "reduce", "is_empty"]),
        ("get_kv_connector_kv_cache_events", ["add_events", "get_all_events", "increment_workers"]),
        ("build_connector_worker_meta", ["aggregate"]),
    ],
)
def test_what_a_worker_says_has_all_the_methods_that_it_is_asked_by(name: str, methods: list[str]) -> None:
    holds = SHAPES[name].holds
    assert holds(SimpleNamespace(**dict.fromkeys(methods, len)))
    for lacking in methods:
        others = {method: len for method in methods if method != lacking}
        assert not holds(SimpleNamespace(**others)) and not holds(SimpleNamespace(**others, **{lacking: 7}))


@pytest.mark.parametrize("answer", [(0, False), (4, True), (4, False), (None, False)])
def test_what_is_a_match(answer: Any) -> None:
    assert is_match(answer) is True


@pytest.mark.parametrize(
    "answer",
    [None, 0, [0, False], (0,), (0, False, 1), (0, None), (0, 1), ("0", False), (-1, False), (True, False)],
)
def test_what_is_no_match(answer: Any) -> None:
    assert is_match(answer) is False


def test_where_an_object_lies_is_not_told() -> None:
    assert complaint("get_finished_count", object()).startswith("get_finished_count answered <object object>, ")


def test_nor_is_all_of_an_answer_that_is_long() -> None:
    assert len(complaint("get_finished_count", "long " * 1000)) < 200
