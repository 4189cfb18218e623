"""Sends the log lines of our packages to vLLM's handlers, with vLLM's level, time and process.

vLLM has handlers only for its own loggers. Without this, warnings of our packages would appear as bare text, and
lower levels not at all.
"""

import logging
from typing import Final

OURS: Final = (
    *("kv_factory", "kv_multi", "kv_offload", "kv_offload_cpu", "kv_offload_file", "kv_p2p"),
    "kv_vllm",
)
"""A logger for each package that logs."""


def join_vllms_log() -> None:
    """Pass our packages' log lines on to vLLM's logger, unless they have handlers, or vLLM hides warnings."""
    vllms = logging.getLogger("vllm")
    if not vllms.hasHandlers() or not vllms.isEnabledFor(logging.WARNING):
        return
    for logger in map(logging.getLogger, OURS):
        if not logger.hasHandlers():
            logger.parent = vllms
            logger.setLevel(logger.level)  # forgets what was enabled below the other one
