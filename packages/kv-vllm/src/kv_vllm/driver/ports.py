"""Ports on which connectors of vLLM listen: each engine of a machine needs its own, and has to be told it.

An engine gets them from its environment, so they stand there while its connector is made.
"""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

PORTS: Final = ("VLLM_MOONCAKE_BOOTSTRAP_PORT", "VLLM_NIXL_SIDE_CHANNEL_PORT", "VLLM_P2P_SIDE_CHANNEL_PORT")


def free_ports() -> dict[str, str]:
    """One that nobody listens on for each of them."""
    sockets = [socket.socket() for _ in PORTS]
    try:
        for each in sockets:
            each.bind(("localhost", 0))
        return {name: str(each.getsockname()[1]) for name, each in zip(PORTS, sockets, strict=True)}
    finally:
        for each in sockets:
            each.close()


@contextmanager
def listening_on(ports: dict[str, str]) -> Iterator[None]:
    """Be the process of an engine with these ports."""
    before = {name: os.environ.get(name) for name in ports}
    os.environ.update(ports)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
