"""Chooses the ports on which vLLM's connectors listen: each engine of a machine needs its own.

An engine reads them from environment variables, so these are set while its connector is made.
"""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import cycle
from typing import Final

PORTS: Final = ("VLLM_MOONCAKE_BOOTSTRAP_PORT", "VLLM_NIXL_SIDE_CHANNEL_PORT", "VLLM_P2P_SIDE_CHANNEL_PORT")


def _from_anywhere() -> Iterator[int]:
    """Port numbers in an endless cycle; the first one differs between processes."""
    numbers = range(20_000, 32_000, 8)
    first = 97 * os.getpid() % len(numbers)
    return cycle([*numbers[first:], *numbers[:first]])


_NUMBERS: Final = _from_anywhere()
"""Ports below those that systems give to outgoing connections, which may be taken at any time."""


def _is_free(number: int) -> bool:
    with socket.socket() as listener:
        try:
            listener.bind(("", number))
        except OSError:
            return False
    return True


def free_ports() -> dict[str, str]:
    """A free port for each of ``PORTS`` that no other engine of this process got recently."""
    free = filter(_is_free, _NUMBERS)
    return {name: str(next(free)) for name in PORTS}


@contextmanager
def process_with(environment: dict[str, str]) -> Iterator[None]:
    """A context with the environment variables of an engine's process."""
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
