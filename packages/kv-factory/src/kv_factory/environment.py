"""Switches in the environment: ``VLLM_USE_V1`` and our own. Read at each use, so that a test can set them."""

from os import environ
from typing import NamedTuple

from kv_api import ConfigError

USE_V1 = "VLLM_USE_V1"
ALLOW_MODULE_PATHS = "KV_FACTORY_ALLOW_MODULE_PATHS"


class Switch(NamedTuple):
    """Whether a switch is on, and why, as words that follow its name."""

    on: bool
    why: str


def read_switch(name: str) -> Switch:
    """Read a switch whose default is on: an integer, ``true`` or ``false``."""
    text = environ.get(name)
    if text is None:
        return Switch(True, "is not set, its default is 1")
    word = text.strip().lower()
    why = f"is {text!r}"
    if word in ("true", "false"):
        return Switch(word == "true", why)
    try:
        return Switch(bool(int(word)), why)
    except ValueError:
        raise ConfigError(f"{name}: expected 0, 1, true or false, got {text!r}") from None
