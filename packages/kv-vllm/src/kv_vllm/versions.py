"""With which versions of vLLM our connectors work: those on which the differential and the long tests pass.

Of any other the interface, and what it promises to connectors, is compared when a connector is made. Where it
differs it can't work, and what ``python -m kv_vllm drift`` prints of it is the error; where it doesn't, it may
work, and a warning says that nobody tried. That command compares more: what else differs may do no harm.
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
    """What there is to say of a version of vLLM: None, or a warning. One that can't work is a ``ConfigError``."""
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
    """Refuse the installed vLLM if it can't work, and log as it does; once a process."""
    version = vllm_version()
    join_vllms_log()
    warning = judge_version(version, partial(drift, pairs=INTERFACE, looked_for=()))
    if warning is not None:
        _log.warning("%s", warning)
