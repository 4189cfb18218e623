"""Tests of addresses of IPv6 run where the machine has some."""

import socket

import pytest

LOOPBACK = "::1"


def has_ipv6() -> bool:
    try:
        socket.create_server((LOOPBACK, 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


NEEDS_IPV6 = pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")
EITHER = ["127.0.0.1", pytest.param(LOOPBACK, marks=NEEDS_IPV6)]
