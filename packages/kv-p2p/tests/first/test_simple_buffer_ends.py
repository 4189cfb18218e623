"""``SimpleBuffer`` over local pipes and over TCP: how either side ends, and what it refuses."""

import logging
from typing import Any

import numpy as np
import pytest
from kv_p2p_background import Background, wait_until
from kv_p2p_simple_buffers import Buffers, end, insert, is_searching, make, select, tokens

from kv_api import WrongSideError
from kv_p2p.first.pipe.arrays import TensorError
from kv_p2p.first.pipe.base import PipeClosedError


def test_the_producer_closes_while_a_request_waits(buffers: Buffers) -> None:
    producer, consumer = buffers
    insert(producer, 1)
    selecting = Background(select, consumer, 2)
    wait_until(lambda: is_searching(producer))
    producer.close()
    with pytest.raises(PipeClosedError, match=r"^the lookup buffer has ended: the pipe "):
        selecting.result()
    with pytest.raises(PipeClosedError, match=r"^the lookup buffer has ended: the pipe "):
        select(consumer, 1)
    with pytest.raises(PipeClosedError) as refused:
        insert(producer, 1)
    assert str(refused.value) == "the lookup buffer has ended: it was closed here"


def test_the_end_is_no_answer(buffers: Buffers, monkeypatch: pytest.MonkeyPatch) -> None:
    producer, consumer = buffers
    answers: list[Any] = []
    monkeypatch.setattr(producer._data_pipe, "send_tensor", answers.append)
    producer.start_answering()
    selecting = Background(select, consumer, 2)
    wait_until(lambda: is_searching(producer))
    producer.close()
    with pytest.raises(PipeClosedError):
        selecting.result()
    assert answers == []


def test_what_comes_as_the_buffer_ends_is_not_kept(buffers: Buffers, monkeypatch: pytest.MonkeyPatch) -> None:
    producer, _ = buffers
    start = producer.start_answering

    def start_and_end() -> None:
        start()
        producer.close()

    monkeypatch.setattr(producer, "start_answering", start_and_end)
    with pytest.raises(PipeClosedError):
        insert(producer, 1)
    producer.check()


def test_the_producer_closes_while_an_insert_waits(sort: str) -> None:
    pair = producer, _ = make(sort, threshold=1)
    insert(producer, 1)
    inserting = Background(insert, producer, 2)
    wait_until(lambda: is_searching(producer))
    producer.close()
    with pytest.raises(PipeClosedError) as ended:
        inserting.result()
    assert str(ended.value) == "the lookup buffer has ended: it was closed here"
    end(pair)


def test_the_consumer_closes_while_its_request_waits(buffers: Buffers) -> None:
    producer, consumer = buffers
    producer.start_answering()
    selecting = Background(select, consumer, 2)
    wait_until(lambda: is_searching(producer))
    consumer.close()
    with pytest.raises(PipeClosedError) as ended:
        selecting.result()
    assert str(ended.value) == "the lookup buffer has ended: it was closed here"


@pytest.mark.parametrize("has_asked", [True, False])
def test_the_consumer_closes_while_an_insert_waits(sort: str, has_asked: bool) -> None:
    pair = producer, consumer = make(sort, threshold=1)
    insert(producer, 1)
    inserting = Background(insert, producer, 2)
    wait_until(lambda: is_searching(producer))
    if has_asked:
        assert select(consumer, 1) == [10]
        inserting.result()
        inserting = Background(insert, producer, 3)
        wait_until(lambda: len(producer._table) == 2)
    consumer.close()
    with pytest.raises(PipeClosedError) as ended:
        inserting.result()
    assert str(ended.value) == "the lookup buffer has ended: the consumer has closed its buffer"
    with pytest.raises(PipeClosedError, match="the consumer has closed its buffer"):
        insert(producer, 4)
    end(pair)


def test_closing_what_was_never_used(buffers: Buffers) -> None:
    for buffer in buffers:
        buffer.close()
        buffer.close()
        for use in (lambda buffer=buffer: select(buffer, 1), lambda buffer=buffer: insert(buffer, 1)):
            with pytest.raises(PipeClosedError) as ended:
                Background(use).result()
            assert str(ended.value) == "the lookup buffer has ended: it was closed here"


@pytest.mark.parametrize("has_asked", [True, False])
def test_only_the_consumer_says_farewell(
    buffers: Buffers, has_asked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer, consumer = buffers
    insert(producer, 1)
    assert not has_asked or select(consumer, 1) == [10]
    said: list[Any] = []
    for buffer in buffers:
        send = buffer._signal_pipe.send_tensor
        monkeypatch.setattr(
            buffer._signal_pipe,
            "send_tensor",
            lambda tensor, b=buffer, send=send: (said.append((b, tensor)), send(tensor)),
        )
    consumer.close()
    producer.close()
    assert said == [(consumer, None)]


def test_a_consumer_that_broke_off_a_request_has_ended(buffers: Buffers, monkeypatch: pytest.MonkeyPatch) -> None:
    producer, consumer = buffers
    insert(producer, 1)
    insert(producer, 2)

    def fail() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(consumer._data_pipe, "recv_tensor", fail)
    with pytest.raises(KeyboardInterrupt):
        select(consumer, 1)
    with pytest.raises(PipeClosedError) as ended:
        select(consumer, 2)
    assert str(ended.value) == (
        "the lookup buffer has ended: a request was broken off, so nobody knows where in the pipe the next "
        "answer begins"
    )


def test_a_request_that_is_none_ends_it_and_is_logged(sort: str, caplog: pytest.LogCaptureFixture) -> None:
    pair = producer, consumer = make(sort)
    with caplog.at_level(logging.WARNING, "kv_p2p"):
        consumer._signal_pipe.send_tensor(np.array([-1.0]))
        consumer._data_pipe.send_tensor(np.array([0.5]))
        feeding = Background(consumer._data_pipe.send_tensor, None)
        producer.start_answering()
        wait_until(lambda: producer._ended is not None)
        feeding.result()
    reason = (
        "the consumer's request can't be used: "
        "input_tokens: expected whole numbers in one dimension, got numpy <f8 (1,)"
    )
    assert [record.getMessage() for record in caplog.records] == [reason]
    with pytest.raises(PipeClosedError) as ended:
        insert(producer, 1)
    assert str(ended.value) == f"the lookup buffer has ended: {reason}"
    end(pair)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_whatever_goes_wrong_with_a_request_ends_it(sort: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pair = producer, consumer = make(sort)

    def fail(asked: object) -> None:
        raise MemoryError

    monkeypatch.setattr(producer._table, "take", fail)
    producer.start_answering()
    with pytest.raises(PipeClosedError, match=r"^the lookup buffer has ended: the pipe "):
        select(consumer, 1)
    wait_until(lambda: producer._ended is not None)
    with pytest.raises(PipeClosedError) as ended:
        insert(producer, 1)
    assert str(ended.value) == "the lookup buffer has ended: the thread that answers requests failed"
    end(pair)


# -- wrong input ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([1], None, None, None, None), "input_tokens: expected a numpy array or a torch tensor, got list"),
        (
            (tokens(1, 2), np.array([True]), None, None, None),
            "roi: expected a mask over 2 tokens, got one over 1",
        ),
        (
            (tokens(1), np.array([1]), None, None, None),
            "roi: expected a mask in one dimension, got numpy <i8 (1,)",
        ),
        ((tokens(1), None, "key", None, None), "key: expected a numpy array or a torch tensor, got str"),
        ((tokens(1), None, None, 3, None), "value: expected a numpy array or a torch tensor, got int"),
        ((tokens(1), None, None, None, []), "hidden: expected a numpy array or a torch tensor, got list"),
    ],
)
def test_what_cant_be_inserted(arguments: Any, message: str) -> None:
    pair = producer, consumer = make("local")
    with pytest.raises(TensorError) as refused:
        producer.insert(*arguments)
    assert str(refused.value) == message
    insert(producer, 1)
    assert select(consumer) == [10]
    end(pair)


def test_a_request_for_no_token_is_refused_and_nothing_else_happens(buffers: Buffers) -> None:
    producer, consumer = buffers
    with pytest.raises(TensorError) as refused:
        consumer.drop_select(tokens(1, 2), np.array([False, False]))
    assert str(refused.value) == ("drop_select: no token counts, so nothing can match; None asks for anything")
    insert(producer, 1)
    assert select(consumer, 1) == [10]


def test_one_side_inserts_and_the_other_selects(buffers: Buffers) -> None:
    producer, consumer = buffers
    insert(producer, 1)
    assert select(consumer, 1) == [10]
    with pytest.raises(WrongSideError) as refused:
        select(producer, 1)
    assert str(refused.value) == (
        "drop_select was called on a lookup buffer whose insert was called before: "
        "one side inserts, the other selects"
    )
    with pytest.raises(WrongSideError) as refused:
        insert(consumer, 1)
    assert str(refused.value) == (
        "insert was called on a lookup buffer whose drop_select was called before: "
        "one side inserts, the other selects"
    )
