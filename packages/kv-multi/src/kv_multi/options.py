"""A MultiConnector's own settings, beside the list of its children.

They are in its ``kv_connector_extra_config``, where vLLM's own parser lets foreign keys pass.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final, NamedTuple, TypeVar

from kv_api import ConfigError
from kv_api.errors import did_you_mean, refuse_misspelt

_OWN_KEYS: Final = ("connectors", "load_policy", "on_child_error", "name", "save")
"""The keys that a MultiConnector reads in its own extra config; the last two if it is itself a child."""

_Choice = TypeVar("_Choice", bound=StrEnum)


class LoadPolicy(StrEnum):
    """Which child loads, if several have tokens."""

    FIRST = "first"
    LONGEST = "longest"


class OnChildError(StrEnum):
    """What happens when a child raises an exception."""

    RAISE = "raise"
    QUARANTINE = "quarantine"


class Options(NamedTuple):
    """The parent's own settings."""

    load_policy: LoadPolicy
    on_child_error: OnChildError


def parse_options(extra_config: Mapping[str, Any]) -> Options:
    """The parent's settings. A key that looks like a misspelling of one is refused."""
    refuse_misspelt(extra_config, _OWN_KEYS, where="kv_connector_extra_config")
    return Options(
        _choice("load_policy", extra_config.get("load_policy", LoadPolicy.FIRST), LoadPolicy),
        _choice("on_child_error", extra_config.get("on_child_error", OnChildError.RAISE), OnChildError),
    )


def _choice(key: str, value: object, choices: type[_Choice]) -> _Choice:
    names = [choice.value for choice in choices]
    if isinstance(value, str) and value in names:
        return choices(value)
    hint = did_you_mean(value, names)
    raise ConfigError(f"kv_connector_extra_config.{key}: got {value!r}; choices: {', '.join(names)}{hint}")
