"""Finds the version of the installed vLLM. Importing this module doesn't import vLLM.

A command that imports vLLM asks for its version first: that also sets the environment variables that vLLM reads at
its import. If vLLM is imported already, this is a server's process, and nothing is set.
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
"""Environment variables for a small, quiet vLLM without network; those that the user has set win."""


class MissingError(ImportError):
    """A package that is needed isn't installed."""


def vllm_version() -> tuple[int, int]:
    """The installed vLLM's version, as its contract counts them: major and minor."""
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
