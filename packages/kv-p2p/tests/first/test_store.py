"""Stores keyed by strings: the same tests for one in this process and one at the other end of a pipe."""

import logging
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kv_p2p_background import Background, wait_until
from kv_p2p_pipe_pairs import SORTS, make_pair

from kv_api import ConfigError
from kv_p2p.first.lookup_buffer.base import KVStoreBufferBase
from kv_p2p.first.lookup_buffer.store import LocalStore, PipeStore, StoreServer
from kv_p2p.first.pipe.arrays import TensorError
from kv_p2p.first.pipe.base import PipeClosedError
from kv_p2p.first.pipe.local import LocalPipe


@pytest.fixture(params=["here", *SORTS])
def store(request: pytest.FixtureRequest) -> Iterator[KVStoreBufferBase]:
    held = LocalStore(1000)
    if request.param == "here":
        yield held
        held.close()
    else:
        one, other = make_pair(request.param)
        server, client = StoreServer(one, held), PipeStore(other)
        yield client
        client.close()
        server.close()
    held.check()


def test_what_was_put_is_there(store: KVStoreBufferBase) -> None:
    array = np.arange(4)
    store.put("kéy", array)
    array[0] = 9
    found = store.get("kéy")
    assert found.tolist() == [0, 1, 2, 3]  # type: ignore[union-attr]
    found[0] = 8  # type: ignore[index]
    assert store.get("kéy").tolist() == [0, 1, 2, 3]  # type: ignore[union-attr]
    assert store.get("key") is None
    store.put("kéy", np.array(5))
    assert store.get("kéy").tolist() == 5  # type: ignore[union-attr]
    store.put("kéy", None)
    assert store.get("kéy") is None


def test_what_was_put_longest_ago_makes_room(store: KVStoreBufferBase) -> None:
    for key in "abc":
        store.put(key, np.zeros(300, np.uint8))
    store.put("a", np.zeros(301, np.uint8))
    store.put("d", np.zeros(200, np.uint8))
    assert [key for key in "abcd" if store.get(key) is not None] == ["a", "c", "d"]
    store.put("e", np.zeros(1001, np.uint8))
    assert store.get("e") is None
    store.put("f", np.zeros(1000, np.uint8))
    assert [key for key in "acdf" if store.get(key) is not None] == ["f"]


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.none() | st.integers(0, 12))))
def test_it_does_what_a_list_does(puts: list[tuple[str, int | None]]) -> None:
    store, model = LocalStore(20), list[tuple[str, int]]()
    for key, size in puts:
        store.put(key, None if size is None else np.zeros(size, np.uint8))
        store.check()
        model = [one for one in model if one[0] != key]
        if size is not None:
            model.append((key, size))
            while sum(size for _, size in model) > 20:
                del model[0]
        assert {key: store.get(key) is not None for key in "abcd"} == {key: key in dict(model) for key in "abcd"}


def test_what_cant_be_stored_is_refused_and_nothing_else_happens(store: KVStoreBufferBase) -> None:
    with pytest.raises(TensorError) as refused:
        store.put("a", [1])
    assert str(refused.value) == "a: expected a numpy array or a torch tensor, got list"
    store.put("a", np.array(1))
    assert store.get("a") is not None


def test_a_closed_store(store: KVStoreBufferBase) -> None:
    store.close()
    store.close()
    with pytest.raises(PipeClosedError):
        store.get("a")
    with pytest.raises(PipeClosedError):
        store.put("a", np.array(1))


def test_the_server_ends_and_the_store_stays() -> None:
    one, other = make_pair("tcp")
    held = LocalStore(1000)
    server, client = StoreServer(one, held), PipeStore(other)
    client.put("a", np.array(1))
    assert (server._thread.name, server._thread.daemon) == ("kv-p2p store", True)
    server.close()
    with pytest.raises(PipeClosedError):
        client.get("a")
    assert held.get("a") is not None
    held.check()


def test_a_client_that_broke_off_a_request_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = make_pair("local")
    server, client = StoreServer(one, LocalStore(10)), PipeStore(other)

    def fail() -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(other, "recv_tensor", fail)
        with pytest.raises(KeyboardInterrupt):
            client.get("a")
    with pytest.raises(PipeClosedError):
        client.get("a")
    server.close()


KEY = np.array([97])


@pytest.mark.parametrize(("what", "key"), [([0], None), (None, KEY), ([2], KEY), ([0, 1], KEY)])
def test_a_request_that_is_none_ends_it_and_is_logged(
    what: list[int] | None, key: Any, caplog: pytest.LogCaptureFixture
) -> None:
    one, other = make_pair("local")
    sent = None if what is None else np.array(what)
    with caplog.at_level(logging.WARNING, "kv_p2p"):
        server = StoreServer(one, LocalStore(10))
        other.send_tensor(sent)
        other.send_tensor(key)
        wait_until(lambda: not server._thread.is_alive())
    assert [record.getMessage() for record in caplog.records] == [
        f"a request to a store can't be used: expected [0] or [1] and a key, got {sent!r} and {key!r}"
    ]
    with pytest.raises(PipeClosedError):
        other.recv_tensor()
    server.close()
    other.close()


def test_a_key_that_is_no_text_ends_it_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    one, other = make_pair("local")
    with caplog.at_level(logging.WARNING, "kv_p2p"):
        server = StoreServer(one, LocalStore(10))
        other.send_tensor(np.array([0]))
        other.send_tensor(np.array([255], np.uint8))
        wait_until(lambda: not server._thread.is_alive())
    assert [record.getMessage() for record in caplog.records] == [
        "a request to a store can't be used: "
        "'utf-8' codec can't decode byte 0xff in position 0: invalid start byte"
    ]
    server.close()
    other.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_store_that_fails_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = make_pair("local")
    held = LocalStore(10)

    def fail(key: str) -> None:
        raise MemoryError

    monkeypatch.setattr(held, "get", fail)
    server, client = StoreServer(one, held), PipeStore(other)
    getting = Background(client.get, "a")
    with pytest.raises(PipeClosedError):
        getting.result()
    server.close()


def test_a_store_of_nothing() -> None:
    with pytest.raises(ConfigError) as refused:
        LocalStore(0)
    assert str(refused.value) == "capacity_bytes: expected at least 1, got 0"
    least = LocalStore(1)
    least.put("a", np.ones(1, np.uint8))
    assert least.get("a") is not None


def test_requests_of_several_threads_do_not_mix() -> None:
    class Pipe(LocalPipe):
        def send_tensor(self, tensor: Any) -> None:
            asked_alone.append(client._asking.locked())
            super().send_tensor(tensor)

        def recv_tensor(self) -> Any:
            asked_alone.append(client._asking.locked())
            return super().recv_tensor()

    asked_alone: list[bool] = []
    one, other = LocalPipe.pair()
    other.__class__ = Pipe
    server, client = StoreServer(one, LocalStore(1000)), PipeStore(other)
    client.put("key", np.arange(3))
    assert client.get("key").tolist() == [0, 1, 2]
    client.close()
    server.close()
    assert asked_alone == [True] * 7
