"""``SimpleConnector`` from one tiny engine to another, each in a thread of this process."""

import logging
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kv_p2p_background import LIMIT_SECONDS, Background, wait_until
from kv_p2p_ipv6 import EITHER
from kv_p2p_tiny_engine import TinyEngine, config_of, free_port, hidden_of

from kv_api import WrongSideError
from kv_p2p.first.connector import SimpleConnector
from kv_p2p.first.lookup_buffer.simple import SimpleBuffer
from kv_p2p.first.model_input import ModelInputError
from kv_p2p.first.pipe.arrays import TensorError
from kv_p2p.first.pipe.base import PipeClosedError
from kv_p2p.first.pipe.rendezvous import connect

FEWER = settings(max_examples=max(5, settings().max_examples // 5))
"""Each example makes connections."""

Connectors = tuple[SimpleConnector, SimpleConnector]
Prompts = Sequence[Sequence[int]]
A, B, C = [1, 2, 3, 4, 5], [1, 2, 3], [7]


def make(rank: int = 0, **extra: Any) -> Connectors:
    """A producer and its consumer."""
    port = free_port(rank + 1)
    making = Background(SimpleConnector, rank, rank, config_of("kv_producer", port, **extra))
    consumer = SimpleConnector(rank, rank, config_of("kv_consumer", port, **extra))
    return making.result(), consumer


def end(pair: Connectors) -> None:
    for connector in pair:
        connector.check()
        connector.close()


@pytest.fixture
def pair() -> Iterator[Connectors]:
    pair = make(wait_seconds=0.05)
    yield pair
    end(pair)


def send(connector: SimpleConnector, engine: TinyEngine, prompts: Prompts, decodes: Sequence[int] = ()) -> None:
    batch, hidden = engine.prefill(prompts, decodes)
    connector.send_kv_caches_and_hidden_states(engine.model, batch, engine.caches, hidden)


def receive(
    connector: SimpleConnector,
    engine: TinyEngine,
    prompts: Prompts,
    arrived: Sequence[bool],
    decodes: Sequence[int] = (),
) -> None:
    """Receive a batch, and compare all there is with what should be."""
    batch = engine.batch(prompts, decodes)
    hidden, bypass, model_input = connector.recv_kv_caches_and_hidden_states(engine.model, batch, engine.caches)
    assert model_input is batch
    assert bypass == (all(arrived) and not decodes and bool(prompts))
    if bypass:
        np.testing.assert_array_equal(hidden, np.concatenate([hidden_of(prompt) for prompt in prompts]))
    else:
        assert hidden is None
    engine.expect(batch, prompts, arrived)
    engine.check()


@pytest.mark.parametrize("host", EITHER)
def test_batches_in_another_order(host: str) -> None:
    pair = producer, consumer = make(host=host)
    one, other = TinyEngine(1, first_layer=4), TinyEngine(2)
    send(producer, one, [A, B])
    send(producer, one, [C, B[::-1]])
    receive(consumer, other, [C, A], [True, True])
    receive(consumer, other, [B[::-1]], [True])
    receive(consumer, other, [B], [True])
    end(pair)


@pytest.mark.parametrize("missing", ["keys", "values", "shape of the hidden states"])
def test_what_came_in_part_is_computed(pair: Connectors, missing: str) -> None:
    producer, consumer = pair
    there = np.zeros((3, len(A), 2, 5), np.float32)
    keys, values = None if missing == "keys" else there, None if missing == "values" else there
    hidden = np.float32(1.0) if missing == "shape of the hidden states" else hidden_of(A)
    producer._buffer.insert(np.array(A), None, keys, values, np.asarray(hidden))
    engine = TinyEngine(2)
    into = engine.batch([A])
    assert consumer.recv_kv_caches_and_hidden_states(engine.model, into, engine.caches) == (None, False, into)


def test_where_one_prompt_ends_and_the_next_begins(pair: Connectors) -> None:
    """Both together are a prompt, too."""
    producer, consumer = pair
    one, other = TinyEngine(1), TinyEngine(2)
    batch, hidden = one.prefill([[1, 2, 3], [1, 2], [3]])
    producer.send_kv_caches_and_hidden_states(one.model, batch, one.caches, hidden)
    into = other.batch([[1, 2], [3]])
    assert consumer.recv_kv_caches_and_hidden_states(other.model, into, other.caches)[1] is True
    other.expect(into, [[1, 2], [3]], [True, True])
    other.check()


def test_a_prompt_that_is_not_there(pair: Connectors) -> None:
    producer, consumer = pair
    one, other = TinyEngine(1), TinyEngine(2)
    send(producer, one, [A, C])
    receive(consumer, other, [C, [9, 9], A], [True, False, True])
    send(producer, one, [[9, 9]])
    receive(consumer, other, [[9, 9]], [True])


def test_the_wait_is_limited_even_before_anything_was_ever_sent(pair: Connectors) -> None:
    Background(receive, pair[1], TinyEngine(2), [A], [False]).result()


def test_requests_come_by_the_connection_that_is_for_signals() -> None:
    """And all else by the other one, also for who is no connector."""
    port = free_port(1)
    making = Background(SimpleConnector, 0, 0, config_of("kv_producer", port))
    consumer = SimpleBuffer(*connect("127.0.0.1", port, 0, LIMIT_SECONDS), 1e9, wait_seconds=0.0)
    assert consumer.drop_select(None, None) == [None] * 5
    consumer.close()
    making.result().close()


def test_recounting_finds_what_is_wrong_in_the_buffer(pair: Connectors) -> None:
    table = pair[0]._buffer._table
    table.num_bytes = 1
    with pytest.raises(AssertionError, match=r"^1 bytes counted, 0 held"):
        pair[0].check()
    table.num_bytes = 0


def test_sequences_that_decode_are_not_sent_and_must_be_computed(pair: Connectors) -> None:
    producer, consumer = pair
    one, other = TinyEngine(1), TinyEngine(2)
    send(producer, one, [A, B], decodes=[50, 60])
    send(producer, one, [], decodes=[50])
    receive(consumer, other, [B], [True], decodes=[70])
    receive(consumer, other, [], [], decodes=[70])
    receive(consumer, other, [A], [True])
    receive(consumer, other, [C], [False])


@pytest.mark.parametrize(("sent", "asked"), [(A, B), (B, A)])
def test_a_shorter_or_a_longer_prompt_is_as_good_as_none(
    pair: Connectors, sent: Sequence[int], asked: Sequence[int]
) -> None:
    producer, consumer = pair
    one, other = TinyEngine(1), TinyEngine(2)
    send(producer, one, [sent])
    receive(consumer, other, [asked], [False])


@pytest.mark.parametrize("rows", [None, 2, len(A) + 1])
def test_unless_hidden_states_came_for_each_token_the_model_must_run(pair: Connectors, rows: int | None) -> None:
    producer, consumer = pair
    one, other = TinyEngine(1), TinyEngine(2)
    batch, hidden = one.prefill([A])
    if rows is None:
        producer.send_kv_caches_and_hidden_states(one.model, batch, one.caches, None)
    else:
        tokens = np.array(A)
        keys = np.zeros((3, len(A), 2, 5), np.float32)
        producer._buffer.insert(tokens, None, keys, keys, np.concatenate([hidden, hidden])[:rows])
    into = other.batch([A])
    assert consumer.recv_kv_caches_and_hidden_states(other.model, into, other.caches) == (None, False, into)


def test_hidden_states_may_be_one_number_for_each_token(pair: Connectors) -> None:
    producer, consumer = pair
    one, other = TinyEngine(1), TinyEngine(2)
    batch, _ = one.prefill([A, B])
    producer.send_kv_caches_and_hidden_states(one.model, batch, one.caches, np.arange(9.0))
    into = other.batch([B, A])
    came, bypass, _ = consumer.recv_kv_caches_and_hidden_states(other.model, into, other.caches)
    assert (came.tolist(), bypass) == ([5, 6, 7, 0, 1, 2, 3, 4], True)


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[Prompts], list[Prompts]]:
    """Prompts as they are sent, in batches, and as they are asked for, in other batches and another order."""
    prompt = st.lists(st.integers(0, 2), min_size=1, max_size=6)
    prompts = draw(st.lists(prompt, min_size=1, max_size=6))
    shuffled = draw(st.permutations(prompts))
    cuts = draw(st.tuples(st.integers(0, 6), st.integers(0, 6)))
    sent, asked = ([whole[:cut], whole[cut:]] for whole, cut in zip((prompts, shuffled), cuts, strict=True))
    return sent, asked


@FEWER
@given(history=histories())
def test_whatever_is_sent_comes(history: tuple[list[Prompts], list[Prompts]]) -> None:
    sent, asked = history
    pair = producer, consumer = make(rank=1)
    one, other = TinyEngine(1), TinyEngine(2)
    for prompts in sent:
        send(producer, one, prompts)
    for prompts in asked:
        receive(consumer, other, prompts, [True] * len(prompts))
    end(pair)


def test_the_threshold_stops_the_producer_and_it_goes_on() -> None:
    pair = producer, consumer = make(buffer_bytes=1)
    one, other = TinyEngine(1), TinyEngine(2)
    sending = Background(send, producer, one, [A, B, C, [8, 8]])
    for prompt in (A, B, C, [8, 8]):
        receive(consumer, other, [prompt], [True])
    sending.result()
    end(pair)


def test_a_producer_that_can_not_answer_ends_its_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[SimpleBuffer] = []

    def refuse(buffer: SimpleBuffer) -> None:
        made.append(buffer)
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(SimpleBuffer, "start_answering", refuse)
    port = free_port()
    making = Background(SimpleConnector, 0, 0, config_of("kv_producer", port))
    consumer = SimpleConnector(0, 0, config_of("kv_consumer", port))
    with pytest.raises(RuntimeError, match="can't start new thread"):
        making.result()
    pipes: Any = [made[0]._signal_pipe, made[0]._data_pipe]
    assert [pipe._connection.fileno() for pipe in pipes] == [-1, -1]
    consumer.close()


@pytest.mark.parametrize("which", ["producer", "consumer"])
def test_each_goes_on_alone_when_the_other_is_gone(which: str, caplog: pytest.LogCaptureFixture) -> None:
    pair = producer, consumer = make()
    one, other = TinyEngine(1), TinyEngine(2)
    send(producer, one, [A])
    receive(consumer, other, [A], [True])
    with caplog.at_level(logging.WARNING, "kv_p2p"):
        if which == "producer":
            producer.close()
            for _ in range(2):
                receive(consumer, other, [A, B], [False, False])
        else:
            consumer.close()
            thread = producer._buffer._thread
            assert thread is not None
            thread.join()
            for _ in range(2):
                send(producer, one, [A, B])
    [(said, (_, error))] = [(record.getMessage(), record.args) for record in caplog.records]
    assert str(error).startswith("the lookup buffer has ended: ")
    assert said == f"no KV is transferred any more, the {which} is gone: {error}"
    end(pair)


def test_a_closed_connector(pair: Connectors) -> None:
    engine = TinyEngine(1)
    for connector in pair:
        connector.close()
        connector.close()
    with pytest.raises(PipeClosedError) as refused:
        send(pair[0], engine, [A])
    assert str(refused.value) == "send_kv_caches_and_hidden_states was called after close"
    with pytest.raises(PipeClosedError) as refused:
        receive(pair[1], engine, [A], [True])
    assert str(refused.value) == "recv_kv_caches_and_hidden_states was called after close"


def test_closing_while_a_prompt_is_waited_for() -> None:
    pair = producer, consumer = make()
    engine = TinyEngine(1)
    receiving = Background(receive, consumer, engine, [A], [True])
    wait_until(lambda: producer._buffer._changed._waiters)  # type: ignore[attr-defined]
    consumer.close()
    with pytest.raises(PipeClosedError) as ended:
        receiving.result()
    assert str(ended.value) == "the lookup buffer has ended: it was closed here"
    end(pair)


def test_the_wrong_side(pair: Connectors) -> None:
    producer, consumer = pair
    engine = TinyEngine(1)
    with pytest.raises(WrongSideError) as refused:
        receive(producer, engine, [A], [True])
    assert str(refused.value) == (
        "recv_kv_caches_and_hidden_states is for a kv_consumer, and this connector's kv_role is kv_producer"
    )
    with pytest.raises(WrongSideError) as refused:
        send(consumer, engine, [A])
    assert str(refused.value) == (
        "send_kv_caches_and_hidden_states is for a kv_producer, and this connector's kv_role is kv_consumer"
    )


@pytest.mark.parametrize(
    ("hidden", "error", "message"),
    [
        (
            np.zeros((4, 7)),
            ModelInputError,
            "hidden_or_intermediate_states: expected rows for 5 tokens, got numpy <f8 (4, 7)",
        ),
        (
            np.array(1.0),
            ModelInputError,
            "hidden_or_intermediate_states: expected rows for 5 tokens, got numpy <f8 ()",
        ),
        (
            {"residual": 1},
            TensorError,
            "hidden_or_intermediate_states: expected a numpy array or a torch tensor, got dict",
        ),
    ],
)
def test_hidden_states_that_are_none(pair: Connectors, hidden: Any, error: type[Exception], message: str) -> None:
    engine = TinyEngine(1)
    batch, _ = engine.prefill([A])
    with pytest.raises(error) as refused:
        pair[0].send_kv_caches_and_hidden_states(engine.model, batch, engine.caches, hidden)
    assert str(refused.value) == message


def test_hidden_states_of_some_of_the_prompts(pair: Connectors) -> None:
    engine = TinyEngine(1)
    batch, hidden = engine.prefill([A, B])
    with pytest.raises(ModelInputError, match=rf": expected rows for {len(A) + len(B)} tokens, got "):
        pair[0].send_kv_caches_and_hidden_states(engine.model, batch, engine.caches, hidden[: len(A)])


def test_engines_of_different_models(pair: Connectors) -> None:
    one, other = TinyEngine(1), TinyEngine(2)
    send(pair[0], one, [A])
    other.caches = [cache.astype(np.float16) for cache in other.caches]
    batch = other.batch([A])
    with pytest.raises(TensorError) as refused:
        pair[1].recv_kv_caches_and_hidden_states(other.model, batch, other.caches)
    assert str(refused.value) == (
        "keys: numpy <f4 (3, 5, 2, 5) came, and the caches here take numpy <f2 (3, 5, 2, 5); "
        "both engines need the same model, cut in the same way"
    )


@pytest.mark.torch
def test_tensors_of_torch() -> None:
    import torch

    pair = producer, consumer = make()
    one, other = TinyEngine(1), TinyEngine(2)
    batch, hidden = one.prefill([A, B])

    def as_tensors(batch: Any) -> Any:
        batch.input_tokens = torch.from_numpy(batch.input_tokens)
        batch.attn_metadata.slot_mapping = torch.from_numpy(batch.attn_metadata.slot_mapping)
        return batch

    caches = [torch.from_numpy(cache).bfloat16() for cache in one.caches]
    producer.send_kv_caches_and_hidden_states(
        one.model, as_tensors(batch), caches, torch.from_numpy(hidden).bfloat16()
    )
    into = as_tensors(other.batch([B, A]))
    filled = [torch.zeros_like(cache) for cache in caches]
    came, bypass, _ = consumer.recv_kv_caches_and_hidden_states(other.model, into, filled)
    assert bypass
    wanted = torch.from_numpy(np.concatenate([hidden_of(B), hidden_of(A)])).bfloat16()
    assert torch.equal(came, wanted)
    other.expect(into, [B, A], [True, True])
    slots = into.attn_metadata.slot_mapping
    for cache, expected in zip(filled, other.expected, strict=True):
        there = torch.from_numpy(expected).bfloat16()[:, slots // 4, slots % 4]
        assert torch.equal(cache[:, slots // 4, slots % 4], there)
        cache[:, slots // 4, slots % 4] = 0
        assert not cache.any()
    end(pair)
