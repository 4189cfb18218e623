"""What a worker's process may be asked to run: module-level functions, since another process must find them."""

import faulthandler
import logging
import multiprocessing
import os
import signal
import sys
import threading
from typing import NamedTuple

from kv_api import ConfigError
from kv_sim.subject import Subject


class SpeakingError(Exception):
    """An error that can be pickled, but not be made again of its message alone."""

    def __init__(self, who: str, what: str) -> None:
        super().__init__(f"{who}: {what}")


def square(seed: int) -> int:
    return seed * seed


def where(seed: int) -> tuple[int, int]:
    return seed, os.getpid()


class Surroundings(NamedTuple):
    """What a process has that runs histories for another one."""

    ends_with_parent: bool
    may_begin_some: bool
    leads_a_group: bool
    hears_interrupts: bool
    logs: bool
    tells_of_crashes: bool


def surroundings(seed: int) -> Surroundings:
    return Surroundings(
        "ends with its parent" in [thread.name for thread in threading.enumerate()],
        not multiprocessing.current_process().daemon,
        os.getpgrp() == os.getpid(),
        signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ()),
        not any(isinstance(handler, logging.NullHandler) for handler in logging.getLogger().handlers),
        faulthandler.is_enabled(),
    )


def refuses(seed: int) -> int:
    if seed == 12:
        raise ConfigError("no twelve")
    return seed


def speaks(seed: int) -> int:
    raise SpeakingError("seed", str(seed))


def keeps_a_frame(seed: int) -> int:
    error = ValueError("with something")
    error.frame = sys._getframe()  # type: ignore[attr-defined]
    raise error


def ends(seed: int) -> int:
    if seed == 13:
        os._exit(7)
    return seed


def long(seed: int) -> str:
    """More than the buffer of a pipe has room for."""
    return str(seed) * 300_000


def run_of(subject: Subject, seed: int) -> str:
    return f"{subject.kv_connector} {seed}"
