"""Ports on which connectors of vLLM listen: each engine of a machine needs its own, and has to be told it.

An engine gets them from its environment, so they stand there while its connector is made.
"""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import cycle
from typing import Final

PORTS: Final = ("VLLM_MOONCAKE_BOOTSTRAP_PORT", "VLLM_NIXL_SIDE_CHANNEL_PORT", "VLLM_P2P_SIDE_CHANNEL_PORT")


def _from_anywhere() -> Iterator[int]:
    """Numbers of ports, again and again; where they begin differs from process to process."""
    numbers = range(20_000, 32_000, 8)
    first = 97 * os.getpid() % len(numbers)
    return cycle([*numbers[first:], *numbers[:first]])


_NUMBERS: Final = _from_anywhere()
"""All below those that a system gives to whoever connects somewhere: such a one may be taken at any time."""


def _is_free(number: int) -> bool:
    with socket.socket() as listener:
        try:
            listener.bind(("", number))
        except OSError:
            return False
    return True


def free_ports() -> dict[str, str]:
    """For each of ``PORTS`` one on which nobody listens, and that no other engine here was given of late."""
    free = filter(_is_free, _NUMBERS)
    return {name: str(next(free)) for name in PORTS}


@contextmanager
def process_with(environment: dict[str, str]) -> Iterator[None]:
    """Be the process of an engine that finds this in its environment."""
    before = {name: os.environ.get(name) for name in environment}
    os.environ.update(environment)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
