"""Where what our packages log goes inside a vLLM: where vLLM's own lines go, with its level, time and process.

vLLM has handlers for its own loggers alone. What others log would come as bare text: warnings, and nothing below.
"""

import logging
from typing import Final

OURS: Final = (
    *("kv_factory", "kv_multi", "kv_offload", "kv_offload_cpu", "kv_offload_file", "kv_p2p"),
    "kv_vllm",
)
"""A logger for each package that logs."""


def join_vllms_log() -> None:
    """Hand on to vLLM's logger what nobody else handles, if vLLM shows warnings; else they would be lost."""
    vllms = logging.getLogger("vllm")
    if not vllms.hasHandlers() or not vllms.isEnabledFor(logging.WARNING):
        return
    for logger in map(logging.getLogger, OURS):
        if not logger.hasHandlers():
            logger.parent = vllms
            logger.setLevel(logger.level)  # forgets what was enabled below the other one
