"""``SimpleBuffer`` over local pipes and over TCP: order, and the threshold."""

import logging
from typing import Any

import numpy as np
import pytest
from kv_p2p_background import LIMIT_SECONDS, Background, wait_until
from kv_p2p_simple_buffers import NOTHING, Buffers, end, insert, is_searching, make, select, tokens

from kv_p2p.first.lookup_buffer.simple import SimpleBuffer
from kv_p2p.first.lookup_buffer.table import EntryTable
from kv_p2p.first.pipe.local import LocalPipe


def test_requests_in_another_order(buffers: Buffers) -> None:
    producer, consumer = buffers
    for number in range(6):
        insert(producer, number + 1, 7)
    assert [select(consumer, number, 7) for number in (4, 1, 6)] == [[40, 70], [10, 70], [60, 70]]
    assert [select(consumer), select(consumer)] == [[20, 70], [30, 70]]
    assert select(consumer, 5, 7) == [50, 70]


def test_what_was_inserted_is_what_is_selected(buffers: Buffers) -> None:
    producer, consumer = buffers
    inserted = [
        tokens(1, 2, 3),
        np.array([True, False, True]),
        np.random.default_rng(0).random((2, 3, 4), np.float32),
        np.arange(6, dtype=">i2").reshape(3, 2),
        None,
    ]
    producer.insert(*inserted)
    for tensor in inserted[:4]:
        tensor[...] = 0  # type: ignore[index]
    selected = consumer.drop_select(tokens(5, 1, 3), np.array([False, True, True]))
    assert [None if one is None else one.tolist() for one in selected[:2]] == [[1, 2, 3], [True, False, True]]
    np.testing.assert_array_equal(selected[2], np.random.default_rng(0).random((2, 3, 4), np.float32))
    np.testing.assert_array_equal(selected[3], np.arange(6).reshape(3, 2))
    assert [None if one is None else one.dtype.str for one in selected] == ["<i8", "|b1", "<f4", ">i2", None]


def test_a_request_waits_for_its_entry(buffers: Buffers) -> None:
    producer, consumer = buffers
    insert(producer, 1)
    selecting = Background(select, consumer, 2, 3)
    wait_until(lambda: is_searching(producer))
    insert(producer, 4)
    assert selecting.is_running
    insert(producer, 2, 3)
    assert selecting.result() == [20, 30]


def test_a_request_before_anything_is_inserted(buffers: Buffers) -> None:
    producer, consumer = buffers
    selecting = Background(select, consumer, 1)
    insert(producer, 1)
    assert selecting.result() == [10]


def test_an_entry_with_fewer_tokens_than_asked_for_is_an_answer(buffers: Buffers) -> None:
    producer, consumer = buffers
    insert(producer, 1)
    assert select(consumer, 1, 2) == [10]


def test_one_thread_answers_all(buffers: Buffers) -> None:
    producer, consumer = buffers
    producer.start_answering()
    thread = producer._thread
    insert(producer, 1)
    assert (producer._thread, select(consumer, 1)) == (thread, [10])
    assert thread is not None and (thread.name, thread.daemon) == ("kv-p2p buffer", True)


@pytest.mark.parametrize(("wait_seconds", "number"), [(None, -1.0), (0.5, 0.5)])
def test_what_a_request_says(wait_seconds: float | None, number: float) -> None:
    signals, data = LocalPipe.pair(), LocalPipe.pair()
    consumer = SimpleBuffer(signals[0], data[0], 1, wait_seconds=wait_seconds)
    for _ in range(2 * len(NOTHING)):
        data[1].send_tensor(None)
    assert consumer.drop_select(tokens(5, 6, 7), np.array([True, False, True])) == NOTHING
    assert consumer.drop_select(None, None) == NOTHING
    consumer.close()
    said = [signals[1].recv_tensor() for _ in range(3)] + [data[1].recv_tensor() for _ in range(4)]
    assert [None if one is None else one.tolist() for one in said] == [
        *([number], [number], None),
        *([5, 7], [True, True], None, None),
    ]


def test_one_request_is_made_at_a_time(buffers: Buffers, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else two answers would come, and nobody would know whose."""
    producer, consumer = buffers
    asked, alone = consumer._ask, []
    monkeypatch.setattr(consumer, "_ask", lambda about: alone.append(consumer._asking.locked()) or asked(about))
    insert(producer, 1)
    assert (select(consumer, 1), alone) == ([10], [True])


@pytest.mark.parametrize("wait_seconds", [0.01, 0.0])
def test_the_wait_is_limited(sort: str, wait_seconds: float, caplog: pytest.LogCaptureFixture) -> None:
    pair = producer, consumer = make(sort, wait_seconds=wait_seconds)
    producer.start_answering()
    with caplog.at_level(logging.WARNING, "kv_p2p"):
        assert Background(consumer.drop_select, tokens(1), None).result() == NOTHING
    assert not caplog.records
    insert(producer, 1)
    assert select(consumer, 1) == [10]
    end(pair)


# -- the threshold -------------------------------------------------------------------------------


def test_the_threshold_stops_the_producer_until_something_is_taken(sort: str) -> None:
    pair = producer, consumer = make(sort, threshold=1000)

    def insert_all() -> None:
        for number in range(1, 6):
            insert(producer, number, num_bytes=600)

    inserting = Background(insert_all)
    for number in range(1, 5):
        wait_until(lambda number=number: len(producer._table) == 2 and is_searching(producer))
        producer.check()
        assert inserting.is_running
        assert list(producer._table._by_tokens) == [(number,), (number + 1,)]
        assert select(consumer, number) == [number * 10]
    inserting.result()
    assert select(consumer, 5) == [50]
    end(pair)


def test_what_stands_at_the_threshold_can_be_taken(sort: str) -> None:
    pair = producer, consumer = make(sort, threshold=1000)
    insert(producer, 1, num_bytes=600)
    inserting = Background(lambda: insert(producer, 2, num_bytes=5000))
    assert select(consumer, 2) == [20]
    inserting.result()
    assert len(producer._table) == 1
    end(pair)


def test_one_entry_alone_is_never_stopped(sort: str) -> None:
    pair = producer, consumer = make(sort, threshold=1000)
    insert(producer, 1, num_bytes=5000)
    assert select(consumer, 1) == [10]
    end(pair)


def test_a_request_for_what_cant_come_any_more_is_answered_with_nothing(
    sort: str, caplog: pytest.LogCaptureFixture
) -> None:
    pair = producer, consumer = make(sort, threshold=1000)
    insert(producer, 1, num_bytes=600)
    with caplog.at_level(logging.WARNING, "kv_p2p"):
        selecting = Background(consumer.drop_select, tokens(3, 3), None)
        wait_until(lambda: is_searching(producer))
        inserting = Background(lambda: insert(producer, 2, num_bytes=600))
        assert selecting.result() == NOTHING
    assert [record.getMessage() for record in caplog.records] == [
        "a request for 2 tokens was answered with nothing: 2 entries of 1232 bytes wait to be taken, "
        "so the producer stands still"
    ]
    assert inserting.is_running
    assert select(consumer, 2) == [20]
    inserting.result()
    end(pair)


def test_what_is_found_while_the_producer_stands_still_is_no_matter_for_a_warning(
    sort: str, caplog: pytest.LogCaptureFixture
) -> None:
    pair = producer, consumer = make(sort, threshold=1)
    insert(producer, 1)
    inserting = [Background(insert, producer, 2), Background(insert, producer, 3)]
    wait_until(lambda: len(producer._table) == 3)
    with caplog.at_level(logging.WARNING, "kv_p2p"):
        assert [select(consumer, number) for number in (1, 2)] == [[10], [20]]
    assert not caplog.records
    for each in inserting:
        each.result()
    end(pair)


def test_what_comes_too_late_does_not_stop_the_producer(sort: str) -> None:
    pair = producer, consumer = make(sort, threshold=1000, wait_seconds=0.01)
    producer.start_answering()
    for number in range(1, 5):
        assert consumer.drop_select(tokens(number), None) == NOTHING
    for number in range(1, 6):
        insert(producer, number, num_bytes=600)
    assert select(consumer, 5) == [50]
    insert(producer, 6, num_bytes=10)
    assert [select(consumer, 6), select(consumer, 4)] == [[60], None]
    end(pair)


def test_what_was_answered_once_is_no_less_wanted_the_next_time(sort: str) -> None:
    pair = producer, consumer = make(sort, threshold=1)
    insert(producer, 1)
    assert select(consumer, 1) == [10]
    insert(producer, 1)
    inserting = Background(insert, producer, 2)
    wait_until(lambda: len(producer._table) == 2)
    assert select(consumer, 1) == [10]
    inserting.result()
    end(pair)


def test_who_asks_again_gets_what_came_meanwhile(sort: str) -> None:
    pair = producer, consumer = make(sort, wait_seconds=0.01)
    producer.start_answering()
    for _ in range(2):
        assert consumer.drop_select(tokens(1), None) == NOTHING
    insert(producer, 1)
    assert select(consumer, 1) == [10]
    end(pair)


def test_what_is_asked_for_again_is_wanted_again(sort: str) -> None:
    pair = producer, consumer = make(sort, threshold=1, wait_seconds=0.01)
    insert(producer, 9)
    assert consumer.drop_select(tokens(1), None) == NOTHING
    consumer._wait_seconds = LIMIT_SECONDS
    selecting = Background(select, consumer, 1)
    wait_until(lambda: is_searching(producer))
    insert(producer, 1)
    assert selecting.result() == [10]
    end(pair)


# -- the end -------------------------------------------------------------------------------------


def test_only_who_has_the_lock_changes_a_buffer_or_looks_at_its_table() -> None:
    touched = set()

    class Buffer(SimpleBuffer):
        def __setattr__(self, name: str, value: object) -> None:
            touched.add((name, self._changed._is_owned()))  # type: ignore[attr-defined]
            super().__setattr__(name, value)

    class Table(EntryTable):
        def __getattribute__(self, name: str) -> Any:
            touched.add(("table", producer._changed._is_owned()))  # type: ignore[attr-defined]
            return super().__getattribute__(name)

    producer, consumer = pair = make("local")
    producer.__class__ = consumer.__class__ = Buffer
    producer._table.__class__ = Table
    insert(producer, 1)
    assert select(consumer, 1) == [10]
    end(pair)
    assert touched == {("_side", True), ("_thread", True), ("_ended", True), ("table", True)}
