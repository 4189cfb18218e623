"""What a configuration or a batch gets wrong: exact messages."""

import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from kv_p2p_tiny_engine import TinyEngine

from kv_api import ConfigError, KVTransferConfig
from kv_p2p.first.model_input import ModelInputError, Prompt, read_batch
from kv_p2p.first.options import Options, read_options
from kv_p2p.first.paged import PagedCaches
from kv_p2p.first.pipe.arrays import TensorError

KEYS = "buffer_bytes, connect_seconds, host, port, wait_seconds"


def transfer(role: Any = "kv_producer", kv_port: int = 14579, **extra: Any) -> Any:
    return KVTransferConfig("SimpleConnector", kv_role=role, kv_port=kv_port, kv_connector_extra_config=extra)


def test_defaults() -> None:
    assert read_options(transfer(), 0) == Options(
        role="kv_producer",
        host="127.0.0.1",
        port=14579,
        buffer_bytes=1_000_000_000,
        connect_seconds=60.0,
        wait_seconds=None,
    )


def test_all_of_them() -> None:
    extra = {"host": "::1", "port": 1, "buffer_bytes": 2.5009e3, "connect_seconds": 4, "wait_seconds": 0.5}
    assert read_options(transfer("kv_consumer", **extra), 3) == Options(
        role="kv_consumer", host="::1", port=4, buffer_bytes=2500, connect_seconds=4.0, wait_seconds=0.5
    )
    assert read_options(transfer(port=65530), 5).port == 65535
    assert read_options(transfer(connect_seconds=10**9), 0).connect_seconds == 1e9


def test_none_is_not_given() -> None:
    keys = ["host", "port", "buffer_bytes", "connect_seconds", "wait_seconds"]
    assert read_options(transfer(kv_port=99, **dict.fromkeys(keys)), 0) == Options("kv_producer", 99)
    config = SimpleNamespace(kv_role="kv_producer", kv_connector_extra_config={})  # which has no kv_port
    assert read_options(config, 1) == Options("kv_producer", 14580)  # type: ignore[arg-type]


EXTRA = "kv_connector_extra_config"
BYTES = f"{EXTRA}.buffer_bytes: expected a number of bytes, at least 1, got"
SECONDS = "expected a number of seconds above 0, at most 1000000000, got"


@pytest.mark.parametrize(
    ("given", "rank", "message"),
    [
        (
            transfer("kv_both"),
            0,
            "kv_role: SimpleConnector works in one direction, got 'kv_both'; choices: kv_producer, kv_consumer",
        ),
        (transfer(), -1, "rank: expected a whole number of at least 0, got -1"),
        (transfer(), "0", "rank: expected a whole number of at least 0, got '0'"),
        (transfer(), True, "rank: expected a whole number of at least 0, got True"),
        (transfer(prot=1), 0, f"{EXTRA}: unknown key 'prot'; known: {KEYS}; did you mean 'port'?"),
        (transfer(zzz=1), 0, f"{EXTRA}: unknown key 'zzz'; known: {KEYS}"),
        (transfer(role_="x"), 0, f"{EXTRA}: unknown key 'role_'; known: {KEYS}"),
        (transfer(port=0), 0, f"{EXTRA}.port: expected a port from 1 to 65535, got 0"),
        (
            transfer(port=65535),
            1,
            f"{EXTRA}.port: expected a port from 1 to 65534 (a worker listens at it + 1), got 65535",
        ),
        (transfer(port="1"), 0, f"{EXTRA}.port: expected a port from 1 to 65535, got '1'"),
        (transfer(port=True), 0, f"{EXTRA}.port: expected a port from 1 to 65535, got True"),
        (transfer(kv_port=0), 2, "kv_port: expected a port from 1 to 65533 (a worker listens at it + 2), got 0"),
        (transfer(host=""), 0, f"{EXTRA}.host: expected a host name or an address, got ''"),
        (transfer(host=1), 0, f"{EXTRA}.host: expected a host name or an address, got 1"),
        (transfer(buffer_bytes=0), 0, f"{BYTES} 0"),
        (transfer(buffer_bytes=0.5), 0, f"{BYTES} 0.5"),
        (transfer(buffer_bytes=True), 0, f"{BYTES} True"),
        (transfer(buffer_bytes="1"), 0, f"{BYTES} '1'"),
        (transfer(buffer_bytes=float("inf")), 0, f"{BYTES} inf"),
        (transfer(buffer_bytes=float("nan")), 0, f"{BYTES} nan"),
        (transfer(connect_seconds=True), 0, f"{EXTRA}.connect_seconds: {SECONDS} True"),
        (transfer(connect_seconds=0), 0, f"{EXTRA}.connect_seconds: {SECONDS} 0"),
        (transfer(connect_seconds=float("nan")), 0, f"{EXTRA}.connect_seconds: {SECONDS} nan"),
        (transfer(connect_seconds=10**10), 0, f"{EXTRA}.connect_seconds: {SECONDS} 10000000000"),
        (transfer(wait_seconds="1"), 0, f"{EXTRA}.wait_seconds: {SECONDS} '1'"),
    ],
)
def test_options(given: Any, rank: Any, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read_options(given, rank)
    assert str(refused.value) == message


def batch(lengths: Any, num_prefill: int, tokens: Any = 9, slots: Any = 9) -> Any:
    """A number of tokens or slots stands for that many."""
    return SimpleNamespace(
        input_tokens=np.arange(tokens) if isinstance(tokens, int) else tokens,
        attn_metadata=SimpleNamespace(
            seq_lens=lengths,
            slot_mapping=np.arange(slots) + 20 if isinstance(slots, int) else slots,
            num_prefill_tokens=num_prefill,
        ),
    )


def test_batches() -> None:
    found = read_batch(batch([2, 3, 70, 80], 5))
    assert found == ([Prompt(0, (0, 1), (20, 21)), Prompt(2, (2, 3, 4), (22, 23, 24))], 2)
    assert [prompt.end for prompt in found.prompts] == [2, 5]
    assert read_batch(batch([70], 0)) == ([], 1)
    assert read_batch(batch(np.array([1]), 1, np.array([[7]]), np.array([[8]]))) == ([Prompt(0, (7,), (8,))], 0)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (batch(None, 1), "attn_metadata.seq_lens: not set, so nobody knows where a prompt begins"),
        (
            batch([2, 7], 6),
            "attn_metadata.seq_lens: [2, 7] don't add up to the 6 tokens of the prefills; a prompt is transferred "
            "whole: set enable_chunked_prefill=False and enable_prefix_caching=False",
        ),
        (batch([2, 3], 6), "attn_metadata.seq_lens: [2, 3] are less than the 6 tokens of the prefills"),
        (batch([6], 6, 5), "input_tokens: expected 6 for the tokens of the prefills, got 5"),
        (batch([6], 6, 6, 5), "attn_metadata.slot_mapping: expected 6 for the tokens of the prefills, got 5"),
    ],
)
def test_batches_that_are_none(given: Any, message: str) -> None:
    with pytest.raises(ModelInputError) as refused:
        read_batch(given)
    assert str(refused.value) == message


@pytest.mark.parametrize(
    ("given", "what"),
    [(batch([1], 1, np.ones(1)), "input_tokens"), (batch([1], 1, 1, np.ones(1)), "attn_metadata.slot_mapping")],
)
def test_batches_of_other_types(given: Any, what: str) -> None:
    with pytest.raises(TensorError) as refused:
        read_batch(given)
    assert str(refused.value) == f"{what}: expected whole numbers in one dimension, got numpy <f8 (1,)"


def with_caches(**changed: Any) -> Any:
    """Make ``PagedCaches`` of a tiny engine's, with something else in place of some of them."""

    def make() -> PagedCaches:
        engine = TinyEngine(0)
        caches = engine.caches[: changed.get("count", 3)]
        for index in range(len(caches)):
            caches[index] = changed.get(f"cache_{index}", caches[index])
        return PagedCaches(changed.get("model", engine.model), caches)

    return make


def caches_of_three() -> PagedCaches:
    return with_caches()()  # type: ignore[no-any-return]


def rows(*shape: int, dtype: Any = np.float32) -> Any:
    return np.zeros(shape, dtype)


def test_a_worker_may_have_one_layer() -> None:
    """Caches behind those of its layers are somebody else's."""
    model = SimpleNamespace(model=SimpleNamespace(start_layer=3, end_layer=4))
    cache = np.random.default_rng(0).random((2, 4, 4, 2, 5))
    keys, values = PagedCaches(model, [cache, rows(1)]).read([5, 0])
    assert np.array_equal(keys[0], cache[0].reshape(16, 2, 5)[[5, 0]])
    assert np.array_equal(values[0], cache[1].reshape(16, 2, 5)[[5, 0]])
    other, expected = np.zeros_like(cache), np.zeros_like(cache)
    caches = PagedCaches(model, [other, rows(1)])
    caches.write([9, 15], keys, values)
    expected[:, 2, 1], expected[:, 3, 3] = cache[:, 1, 1], cache[:, 0, 0]
    assert np.array_equal(other, expected)
    assert caches.beside(keys) is keys


FITS = "and the caches here take numpy <f4 (3, 2, 2, 5); both engines need the same model, cut in the same way"


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (with_caches(count=2), ModelInputError, "kv_caches: 2 of them for the layers 0 to 3"),
        (
            with_caches(model=SimpleNamespace(model=SimpleNamespace(start_layer=4, end_layer=4))),
            ModelInputError,
            "kv_caches: 3 of them for the layers 4 to 4",
        ),
        (
            with_caches(cache_0=rows(3, 4, 4, 2, 5)),
            ModelInputError,
            "kv_caches[0]: expected (2, blocks, block size, heads, head size), got (3, 4, 4, 2, 5)",
        ),
        (
            with_caches(cache_0=rows(2)),
            ModelInputError,
            "kv_caches[0]: expected (2, blocks, block size, heads, head size), got (2,)",
        ),
        (
            with_caches(cache_1=rows(2, 4)),
            ModelInputError,
            "kv_caches[1]: expected (2, blocks, block size, heads, head size), got (2, 4)",
        ),
        (
            with_caches(cache_2=rows(2, 12, 4, 2, 6)),
            ModelInputError,
            "kv_caches[2]: numpy <f4 (2, 12, 4, 2, 6), and that of the first layer is numpy <f4 (2, 12, 4, 2, 5)",
        ),
        (
            with_caches(cache_2=rows(2, 12, 4, 2, 5, dtype=np.float16)),
            ModelInputError,
            "kv_caches[2]: numpy <f2 (2, 12, 4, 2, 5), and that of the first layer is numpy <f4 (2, 12, 4, 2, 5)",
        ),
        (
            with_caches(cache_1=[1]),
            TensorError,
            "kv_caches[1]: expected a numpy array or a torch tensor, got list",
        ),
        (
            lambda: caches_of_three().read([0, 48]),
            ModelInputError,
            "attn_metadata.slot_mapping: expected slots from 0 to 47, got 48",
        ),
        (
            lambda: caches_of_three().write([-1], rows(3, 1, 2, 5), rows(3, 1, 2, 5)),
            ModelInputError,
            "attn_metadata.slot_mapping: expected slots from 0 to 47, got -1",
        ),
        (
            lambda: caches_of_three().write([1, 2], rows(2, 2, 2, 5), rows(3, 2, 2, 5)),
            TensorError,
            f"keys: numpy <f4 (2, 2, 2, 5) came, {FITS}",
        ),
        (
            lambda: caches_of_three().write([1, 2], rows(3, 2, 2, 5), rows(3, 2, 2, 5, dtype=np.float16)),
            TensorError,
            f"values: numpy <f2 (3, 2, 2, 5) came, {FITS}",
        ),
        (
            lambda: caches_of_three().write([1, 2], rows(3, 2, 2, 5), None),
            TensorError,
            "values: expected a numpy array or a torch tensor, got NoneType",
        ),
    ],
)
def test_caches(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error) as refused:
        call()
    assert str(refused.value) == message


def test_a_tensor_of_another_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(Tensor=SimpleNamespace))
    of_torch = SimpleNamespace(dtype="torch.float32", layout="torch.strided", shape=(2,))
    with pytest.raises(TensorError) as refused:
        caches_of_three().beside(of_torch)
    assert str(refused.value) == "torch float32 (2,) came, and the caches here are of numpy <f4"


def test_nothing_is_written_unless_all_of_it_fits() -> None:
    engine = TinyEngine(0)
    caches = PagedCaches(engine.model, engine.caches)
    with pytest.raises(TensorError):
        caches.write([1, 2], rows(3, 2, 2, 5), rows(3, 1, 2, 5))
    engine.check()
