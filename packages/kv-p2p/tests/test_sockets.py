"""Listening and connecting, by either sort of address, and what can't be one."""

import gc
import socket

import pytest
from kv_p2p_ipv6 import EITHER, LOOPBACK, NEEDS_IPV6

from kv_p2p.sockets import connect, listen


@pytest.mark.parametrize("host", EITHER)
def test_what_listens_is_reached_at_its_own_address(host):
    with listen(host, 0) as listener, connect(host, listener.getsockname()[1], 7.0) as one:
        assert listener.getsockname()[0] == host
        assert one.gettimeout() == 7.0
        assert one.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY), "a frame doesn't wait for the one before"
        other, caller = listener.accept()
        with other:
            assert caller[:2] == one.getsockname()[:2]
            one.sendall(b"x")
            assert other.recv(2) == b"x"


@NEEDS_IPV6
def test_of_a_name_with_both_the_address_of_ipv4(monkeypatch):
    sixth = socket.AF_INET6, socket.SOCK_STREAM, 0, "", (LOOPBACK, 0, 0, 0)
    fourth = socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", 0)
    for *found, address in (
        (sixth, fourth, "127.0.0.1"),
        (fourth, sixth, "127.0.0.1"),
        (sixth, LOOPBACK),
    ):
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, found=found, **__: found)
        with listen("both", 0) as listener:
            assert listener.getsockname()[0] == address


def test_of_several_addresses_of_ipv4_the_systems_first(monkeypatch):
    found = [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (address, 0)) for address in ("127.0.0.2", "127.0.0.1")]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    monkeypatch.setattr(socket, "create_server", lambda address, family: (address, family))
    assert listen("several", 0) == (("127.0.0.2", 0), socket.AF_INET)


def test_the_last_port_is_one(monkeypatch):
    monkeypatch.setattr(socket, "create_server", lambda address, family: (address, family))
    assert listen("127.0.0.1", 65535) == (("127.0.0.1", 65535), socket.AF_INET)


@pytest.mark.parametrize(
    ("host", "port", "error", "said"),
    [
        ("127.0.0.1", 65536, OSError, "ports are 0 to 65535, got 65536"),
        ("127.0.0.1", -1, OSError, "ports are 0 to 65535, got -1"),
        ("x" * 80, 0, OSError, "label too long"),
        ("ä" * 80, 0, OSError, "label"),
        ("nowhere.invalid", 0, socket.gaierror, None),
        ("[::1]", 0, socket.gaierror, None),
    ],
)
def test_where_nobody_can_listen(host, port, error, said):
    with pytest.raises(error, match=said) as raised:
        listen(host, port)
    assert type(raised.value) is error


def test_where_somebody_listens_already():
    with listen("127.0.0.1", 0) as listener:
        with pytest.raises(OSError, match="in use"):
            listen("127.0.0.1", listener.getsockname()[1])
        gc.collect()  # a socket that nobody closed would be a warning now


@pytest.mark.parametrize(("host", "error"), [("x" * 80, OSError), ("nowhere.invalid", socket.gaierror)])
def test_nobody_to_connect_to(host, error):
    with pytest.raises(OSError) as raised:  # noqa: PT011 - the text is the system's
        connect(host, 80, 1.0)
    assert type(raised.value) is error


def test_a_caller_that_the_system_connects_with_itself(monkeypatch):
    """Where nobody listens, at a port that the system gives to callers."""
    one = socket.socket()
    one.bind(("127.0.0.1", 0))
    one.connect(one.getsockname())
    monkeypatch.setattr(socket, "create_connection", lambda *_: one)
    with pytest.raises(ConnectionResetError) as raised:
        connect("127.0.0.1", one.getsockname()[1], 1.0)
    assert str(raised.value) == "the system connected the caller with itself"
    assert one.fileno() == -1
