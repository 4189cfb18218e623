"""Which vLLM is installed. Importing this imports none.

A command that imports vLLM asks for its version first, since that also settles what vLLM reads from the
environment while it is imported. Where it is imported already, it is somebody's server: nothing is settled there.
"""

import logging
import os
import re
import sys
from importlib import import_module
from typing import Final

SETTINGS: Final = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "CRITICAL",
    "HF_HUB_OFFLINE": "1",
}
"""Small, quiet, and no network; what the user has set wins."""


class MissingError(ImportError):
    """What is needed isn't installed."""


def vllm_version() -> tuple[int, int]:
    """The installed vLLM's version, as far as its contract goes."""
    if sys.modules.get("vllm") is None:
        _settle()
    try:
        text: str = import_module("vllm.version").__version__
    except ImportError as error:
        raise MissingError(f"this needs the installed vLLM, and none can be imported: {error}") from error
    found = re.match(r"(\d+)\.(\d+)", text)
    if found is None:
        raise MissingError(f"the installed vLLM has version {text!r}; expected a version like 0.33.0")
    return int(found[1]), int(found[2])


def _settle() -> None:
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
    # Not every vLLM reads it at its import; all take it in small letters, too.
    logging.getLogger("vllm").setLevel(os.environ["VLLM_LOGGING_LEVEL"].upper())
