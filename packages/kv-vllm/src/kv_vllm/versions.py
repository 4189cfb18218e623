"""The versions of vLLM with which our connectors work: those on which the differential and the long tests pass.

With any other version, the connector interface, and what vLLM promises to connectors, is compared when a connector
is made. If it differs, the connector can't work, and the error lists what ``python -m kv_vllm drift`` prints about
it. If it doesn't, the connector may work, and a warning says that this version wasn't tested. That command
compares more; other differences may be harmless.
"""

from collections.abc import Callable
from functools import cache, partial
from logging import getLogger
from typing import Final

from kv_api import ConfigError
from kv_vllm.drift.compare import drift
from kv_vllm.drift.pairs import INTERFACE
from kv_vllm.installed import vllm_version
from kv_vllm.log import join_vllms_log

TRIED: Final = ((0, 32), (0, 33))

_log = getLogger("kv_vllm")


def judge_version(version: tuple[int, int], look_for_drift: Callable[[Callable[[str], None]], bool]) -> str | None:
    """The warning about a version of vLLM, or None; a ``ConfigError`` if it can't work."""
    if version in TRIED:
        return None
    number, tried = f"{version[0]}.{version[1]}", ", ".join(f"{major}.{minor}" for major, minor in TRIED)
    lines: list[str] = []
    if not look_for_drift(lines.append):
        told = "\n".join(line for line in lines if not line.startswith("  intended"))
        raise ConfigError(f"the connector interface of vLLM {number} differs from that of {tried}:\n{told}")
    return f"these connectors were tested with vLLM {tried}, not with {number}; the interface is the same"


@cache
def require_version() -> None:
    """Refuse the installed vLLM if it can't work, and send our log lines to vLLM's log; once in a process."""
    version = vllm_version()
    join_vllms_log()
    warning = judge_version(version, partial(drift, pairs=INTERFACE, looked_for=()))
    if warning is not None:
        _log.warning("%s", warning)
