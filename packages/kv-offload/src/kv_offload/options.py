"""The settings in the connector's extra config, checked when the connector is made.

The names and defaults are vLLM's where vLLM has them. The medium has its keys in the same mapping and names them
(``extra_keys``); whoever made this connector a child may have some there, too. So a key that nobody names is let
pass, unless it is nearly one of ours or of the medium's: then it is most likely misspelt.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any, Final

from kv_api import ConfigError
from kv_api.errors import refuse_misspelt
from kv_factory import OffloadingSpecFactory


class HoldBlocks(StrEnum):
    """How blocks are protected while a store still reads them, although their request has freed them."""

    AUTO = "auto"
    """``always``, unless the engine's configuration says that ``never`` is sound."""
    ALWAYS = "always"
    """Store when a request has ended, and hold its blocks meanwhile."""
    NEVER = "never"
    """Store chunks as they are computed; whoever gets a freed block waits for its copy first (a fence)."""


class StoreWhen(StrEnum):
    """When what a request computes is stored."""

    COMPUTED = "computed"
    """At once, or when the request has ended (``hold_blocks``)."""
    EVICTED = "evicted"
    """When the engine is about to give its blocks away."""


_LOOK_AHEAD: Final = 8
"""Looked at is this part of all blocks."""
_LEAST_AHEAD: Final = 16
"""But so many blocks at least."""


def look_ahead(num_gpu_blocks: int) -> int:
    """With ``evicted``: how many blocks at the front of the engine's queue of free blocks are looked at."""
    return max(_LEAST_AHEAD, num_gpu_blocks // _LOOK_AHEAD)


NO_OPTIONS: Final = ("spec_name", "spec_module_path", "canonical_layout", "name")
"""Keys of the connector that are read elsewhere: its medium, the medium's settings, its name in a MultiConnector.
"""


@dataclass(frozen=True)
class Options:
    """The connector's own keys; vLLM's first."""

    block_size: int | None = None
    """Tokens of a chunk, a multiple of the one block size."""
    blocks_per_chunk: int | None = None
    """Blocks of a chunk; the other way to say it. Neither: 1."""
    offload_prompt_only: bool = True
    self_describing_kv_events: bool = False
    sync_load_budget_bytes: int = 0
    """Bytes that may be loaded within a step, per step and worker."""
    hold_blocks: HoldBlocks = HoldBlocks.AUTO
    store_when: StoreWhen = StoreWhen.COMPUTED
    load_timeout_seconds: float = 0.0
    """Seconds after which a load counts as failed. 0: never, since a copy that ends later may write blocks of
    another request."""
    store_timeout_seconds: float | None = None
    """The same for a store, which is harmless when it ends later; not given: as for loads."""
    max_deferred_lookups: int = 50
    """How often a request is asked to wait for chunks that are being stored, until it gets blocks."""
    save: bool = True


def parse_options(extra_config: Mapping[str, Any]) -> Options:
    """Read and check them."""
    own = [field.name for field in fields(Options)]
    _refuse_misspelt(extra_config, (*own, *NO_OPTIONS))
    layout = extra_config.get("canonical_layout")
    if layout is not None and not isinstance(layout, bool):
        raise _wrong("canonical_layout", layout, "true or false")
    values = {key: _read(key, extra_config[key]) for key in own if extra_config.get(key) is not None}
    if "block_size" in values and "blocks_per_chunk" in values:
        raise ConfigError(
            f"kv_connector_extra_config: block_size {values['block_size']} and blocks_per_chunk "
            f"{values['blocks_per_chunk']} say the same thing; give one of them"
        )
    return Options(**values)


def _read(key: str, value: object) -> Any:
    match key:
        case "offload_prompt_only" | "self_describing_kv_events" | "save":
            if not isinstance(value, bool):
                raise _wrong(key, value, "true or false")
        case "hold_blocks":
            if value not in list(HoldBlocks):
                raise _wrong(key, value, f"one of {', '.join(HoldBlocks)}")
            return HoldBlocks(str(value))
        case "store_when":
            if value not in list(StoreWhen):
                raise _wrong(key, value, f"one of {', '.join(StoreWhen)}")
            return StoreWhen(str(value))
        case "load_timeout_seconds" | "store_timeout_seconds":
            if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < float("inf"):
                raise _wrong(key, value, "a number of seconds, or 0 for never")
            return float(value)
        case _:
            least = 1 if key in ("block_size", "blocks_per_chunk") else 0
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise _wrong(key, value, f"a whole number of at least {least}")
    return value


def _wrong(key: str, value: object, expected: str) -> ConfigError:
    return ConfigError(f"kv_connector_extra_config.{key}: expected {expected}, got {value!r}")


def _refuse_misspelt(extra_config: Mapping[str, Any], own: Collection[str]) -> None:
    try:
        medium = OffloadingSpecFactory.get_spec_cls(extra_config)
    except ConfigError:  # what is wrong with it is said when it is made
        medium = None
    of_the_medium: Any = getattr(medium, "extra_keys", ())  # a class of vLLM's has none
    if medium is not None and (not isinstance(of_the_medium, Collection) or isinstance(of_the_medium, str)):
        raise ConfigError(f"{medium.__name__}.extra_keys: expected a set of names, got {of_the_medium!r}")
    hint = ""
    if medium is not None and not of_the_medium:
        hint = f"a key of the medium's own belongs into {medium.__name__}.extra_keys"
    refuse_misspelt(extra_config, {*own, *of_the_medium}, where="kv_connector_extra_config", hint=hint)
