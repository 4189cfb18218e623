"""``KVOutputAggregator`` against an obvious model, with ranks that report in any order and at any distance."""

from collections import Counter
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kv_api import (
    KVCacheEvent,
    KVConnectorKVEvents,
    KVConnectorOutput,
    KVConnectorStats,
    KVConnectorWorkerMetadata,
    KVOutputAggregator,
)


@dataclass
class RunnerOutput:
    kv_connector_output: KVConnectorOutput | None = None


@dataclass
class Count(KVConnectorStats):
    def aggregate(self, other: KVConnectorStats) -> KVConnectorStats:
        self.data["n"] += other.data["n"]
        self.data["ranks"] += other.data["ranks"]
        return self


@dataclass
class WorkerMeta(KVConnectorWorkerMetadata):
    ranks: list[int]

    def aggregate(self, other: KVConnectorWorkerMetadata) -> KVConnectorWorkerMetadata:
        assert isinstance(other, WorkerMeta)
        return WorkerMeta(self.ranks + other.ranks)


class Events(KVConnectorKVEvents):
    def __init__(self, events: list[KVCacheEvent]) -> None:
        self.events, self.workers = events, 1

    def add_events(self, events: list[KVCacheEvent]) -> None:
        self.events = self.events + events

    def aggregate(self) -> KVConnectorKVEvents:
        return self

    def increment_workers(self, count: int = 1) -> None:
        self.workers += count

    def get_all_events(self) -> list[KVCacheEvent]:
        return self.events

    def get_number_of_workers(self) -> int:
        return self.workers

    def clear_events(self) -> None:
        self.events = []


@st.composite
def skewed_reports(draw: st.DrawFn) -> tuple[int, list[list[KVConnectorOutput | None]]]:
    """For 1 to 4 ranks: each reports each of its ids once, in steps of its own choosing."""
    ranks = draw(st.integers(1, 4))
    steps = draw(st.integers(1, 6))
    table: list[list[KVConnectorOutput | None]] = [
        [KVConnectorOutput() for _ in range(ranks)] for _ in range(steps)
    ]
    for kind in ("finished_sending", "finished_recving"):
        for request in draw(st.lists(st.sampled_from("abcd"), unique=True)):
            for rank in range(ranks):
                step = draw(st.integers(0, steps))  # `steps`: this rank never reports it
                if step == steps:
                    continue
                report = table[step][rank]
                assert report is not None
                setattr(report, kind, (getattr(report, kind) or set()) | {request})
                if kind == "finished_recving" and draw(st.booleans()):
                    report.failed_recving = report.failed_recving | {request}
    for row in table:
        for rank in range(ranks):
            if draw(st.integers(0, 5)) == 0 and row[rank] == KVConnectorOutput():
                row[rank] = None
    return ranks, table


@given(skewed_reports())
def test_an_id_is_reported_exactly_when_its_last_rank_reports_it(
    script: tuple[int, list[list[KVConnectorOutput | None]]],
) -> None:
    ranks, table = script
    aggregator = KVOutputAggregator(ranks)
    seen: dict[str, Counter[str]] = {"finished_sending": Counter(), "finished_recving": Counter()}
    failed: set[str] = set()
    for row in table:
        expected: dict[str, set[str]] = {}
        for kind, counts in seen.items():
            before = {request for request, count in counts.items() if count == ranks}
            for report in row:
                counts.update(getattr(report, kind, None) or ())
            expected[kind] = {request for request, count in counts.items() if count == ranks} - before
        for report in row:
            failed |= report.failed_recving if report else set()
        joined = aggregator.aggregate_reports(row)
        assert (joined.finished_sending or set()) == expected["finished_sending"]
        assert (joined.finished_recving or set()) == expected["finished_recving"]
        assert joined.failed_recving == failed & expected["finished_recving"]
        assert joined.expected_finished_count == ranks
        aggregator.check()


@given(st.lists(st.lists(st.one_of(st.none(), st.integers(0, 9)), min_size=3, max_size=3), max_size=4))
def test_payloads_of_all_ranks_are_joined(table: list[list[int | None]]) -> None:
    aggregator = KVOutputAggregator(3)
    event = KVCacheEvent()
    for row in table:
        reports = [
            None
            if n is None
            else KVConnectorOutput(
                kv_connector_stats=Count({"n": n, "ranks": [rank]}),
                kv_connector_worker_meta=WorkerMeta([rank]),
                kv_cache_events=Events([event] * n),
                invalid_block_ids={n},
            )
            for rank, n in enumerate(row)
        ]
        present = [(rank, n) for rank, n in enumerate(row) if n is not None]
        joined = aggregator.aggregate_reports(reports)
        assert joined.invalid_block_ids == {n for _, n in present}
        if not present:
            assert joined.is_empty()
            continue
        total, ranks = sum(n for _, n in present), [rank for rank, _ in present]
        assert joined.kv_connector_stats == Count({"n": total, "ranks": ranks})
        assert joined.kv_connector_worker_meta == WorkerMeta(ranks)
        assert joined.kv_cache_events is not None
        assert len(joined.kv_cache_events.get_all_events()) == sum(n for _, n in present)
        assert joined.kv_cache_events.get_number_of_workers() == len(present)


@given(st.lists(st.lists(st.booleans(), min_size=3, max_size=3), min_size=1, max_size=4))
def test_a_rank_may_have_any_of_the_payloads(table: list[list[bool]]) -> None:
    reports = [
        KVConnectorOutput(
            kv_connector_stats=Count({"n": 1, "ranks": [rank]}) if counts else None,
            kv_connector_worker_meta=WorkerMeta([rank]) if tells else None,
            kv_cache_events=Events([KVCacheEvent()]) if announces else None,
        )
        for rank, (counts, tells, announces) in enumerate(table)
    ]
    numbers = [sum(column) for column in zip(*table, strict=True)]
    ranks = [rank for rank, (_, tells, _) in enumerate(table) if tells]
    joined = KVOutputAggregator(len(table)).aggregate_reports(reports)
    counting = [rank for rank, (counts, _, _) in enumerate(table) if counts]
    assert joined.kv_connector_stats == (Count({"n": numbers[0], "ranks": counting}) if counting else None)
    assert joined.kv_connector_worker_meta == (WorkerMeta(ranks) if ranks else None)
    events = joined.kv_cache_events
    assert (events.get_number_of_workers() if events is not None else 0) == numbers[2]
    assert (len(events.get_all_events()) if events is not None else 0) == numbers[2]


def test_a_payload_that_says_it_is_empty_is_joined_all_the_same() -> None:
    class NoMeta(WorkerMeta):
        def __len__(self) -> int:
            return 0

    class NoCount(Count):
        def __len__(self) -> int:
            return 0

    report = KVConnectorOutput(kv_connector_worker_meta=NoMeta([]), kv_connector_stats=NoCount({}))
    joined = KVOutputAggregator(1).aggregate_reports([report])
    assert (joined.kv_connector_worker_meta, joined.kv_connector_stats) == (NoMeta([]), NoCount({}))


def test_what_failed_in_one_life_of_an_id_did_not_in_the_next() -> None:
    aggregator = KVOutputAggregator(2)
    failed = KVConnectorOutput(finished_recving={"a"}, failed_recving={"a"})
    fine = KVConnectorOutput(finished_recving={"a"})
    told = [
        aggregator.aggregate_reports(reports).failed_recving for reports in ([failed, None], [fine], [fine] * 2)
    ]
    assert told == [set(), {"a"}, set()]


def test_the_output_of_the_chosen_rank_carries_the_joined_report() -> None:
    aggregator = KVOutputAggregator(2)
    outputs = [RunnerOutput(KVConnectorOutput(finished_sending={"a"})) for _ in range(2)]
    assert aggregator.aggregate(outputs, output_rank=1) is outputs[1]
    assert outputs[1].kv_connector_output == KVConnectorOutput(finished_sending={"a"}, expected_finished_count=2)
    assert aggregator.aggregate(outputs) is outputs[0]
    nothing: list[RunnerOutput | None] = [None, RunnerOutput()]
    assert aggregator.aggregate(nothing, output_rank=0) is None
    with pytest.raises(AssertionError, match=r"rank 1 has an output, ranks \[0\] have none"):
        aggregator.aggregate(nothing, output_rank=1)
    for rank in (-1, 2):
        with pytest.raises(IndexError, match=f"^output_rank: got {rank}, but there are 2 outputs$"):
            aggregator.aggregate(nothing, output_rank=rank)
    with pytest.raises(IndexError, match=r"^output_rank: got 0, but there are 0 outputs$"):
        aggregator.aggregate([])


@pytest.mark.parametrize(("count", "expected"), [(None, 4), (0, 4), (2, 2)])
def test_the_connector_may_say_how_many_reports_complete_an_id(count: int | None, expected: int) -> None:
    class Connector:
        def get_finished_count(self) -> int | None:
            return count

    aggregator = KVOutputAggregator.from_connector(Connector(), world_size=4)
    for report in range(1, expected + 1):
        joined = aggregator.aggregate_reports([KVConnectorOutput(finished_recving={"a"})])
        assert joined.finished_recving == ({"a"} if report == expected else None)


def test_a_worker_may_change_the_count_for_ids_that_come_later() -> None:
    aggregator = KVOutputAggregator(3)
    aggregator.aggregate_reports([KVConnectorOutput(finished_sending={"old"})])
    joined = aggregator.aggregate_reports([KVConnectorOutput(finished_sending={"new"}, expected_finished_count=1)])
    assert joined.finished_sending == {"new"}
    assert joined.expected_finished_count == 1
    assert aggregator.aggregate_reports([KVConnectorOutput(finished_sending={"old"})]).finished_sending is None
    assert aggregator.aggregate_reports([KVConnectorOutput(finished_sending={"old"})]).finished_sending == {"old"}


def test_an_id_that_comes_back_is_counted_from_the_start() -> None:
    aggregator = KVOutputAggregator(2)
    for _ in range(3):
        assert aggregator.aggregate_reports([KVConnectorOutput(finished_recving={"a"})]).finished_recving is None
        assert aggregator.aggregate_reports([KVConnectorOutput(finished_recving={"a"})]).finished_recving == {"a"}


def test_reports_of_a_failed_step_join_the_next_one_without_their_events() -> None:
    aggregator = KVOutputAggregator(2)
    deferred = KVConnectorOutput(finished_recving={"a"}, kv_cache_events=Events([KVCacheEvent()]))
    aggregator.ft_defer_kv_connector_outputs([deferred, None])
    joined = aggregator.aggregate_reports([KVConnectorOutput(finished_recving={"a"})])
    assert joined.finished_recving == {"a"}
    assert joined.kv_cache_events is None
    assert aggregator.aggregate_reports([]).is_empty()


def test_reports_of_a_failed_step_join_once() -> None:
    aggregator = KVOutputAggregator(1)
    aggregator.ft_defer_kv_connector_outputs([KVConnectorOutput(finished_recving={"a"})])
    assert aggregator.aggregate_reports([]).finished_recving == {"a"}
    assert aggregator.aggregate_reports([]).is_empty()


def test_the_count_of_a_failed_step_is_older_than_that_of_the_next_one() -> None:
    aggregator = KVOutputAggregator(1)
    aggregator.ft_defer_kv_connector_outputs([KVConnectorOutput(expected_finished_count=3)])
    joined = aggregator.aggregate_reports([KVConnectorOutput(expected_finished_count=2)])
    assert joined.expected_finished_count == 2


def test_a_count_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^expected_finished_count: at least 1, got 0$"):
        KVOutputAggregator(0)


@pytest.mark.parametrize(
    "values",
    [
        {"finished_sending": {"a"}},
        {"finished_recving": {"a"}},
        {"invalid_block_ids": {0}},
        {"failed_recving": {"a"}},
        {"kv_connector_stats": Count({"n": 0})},
        {"kv_cache_events": Events([])},
        {"kv_connector_worker_meta": WorkerMeta([])},
    ],
)
def test_an_output_is_empty_only_without_anything(values: dict[str, Any]) -> None:
    assert KVConnectorOutput().expected_finished_count == 0
    assert KVConnectorOutput(finished_sending=set(), expected_finished_count=4).is_empty()
    assert not KVConnectorOutput(**values).is_empty()


@pytest.mark.parametrize("kind", ["stores", "loads"])
def test_a_recount_finds_an_id_without_a_report_outstanding(kind: str) -> None:
    aggregator = KVOutputAggregator(2)
    aggregator.aggregate_reports([KVConnectorOutput(finished_sending={"a"}, finished_recving={"a"})])
    aggregator.check()
    getattr(aggregator, f"_{kind}_remaining")["a"] = 0
    with pytest.raises(AssertionError, match=r"^request a: 0 reports outstanding"):
        aggregator.check()
