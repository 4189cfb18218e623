"""One option each: from what somebody typed to what it means; a mistake is a ``ConfigError``."""

import argparse
import json
import os
import re
import sys
from collections.abc import Sequence
from math import inf, isfinite
from pathlib import Path
from typing import Any, Final

from kv_api import ConfigError
from kv_api.errors import did_you_mean, unknown_name
from kv_sim.strict import read_option
from kv_sim.subject import Trait
from kv_sim.violation import Invariant

NO_TRAITS = "none"
USUAL_MINUTES: Final = 10.0
"""Of a campaign."""


def look_in_this_folder() -> None:
    """Let modules of the current folder be found, after all others: there lies what somebody is writing."""
    if not sys.flags.safe_path and os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())


def parse_extra(text: str) -> dict[str, Any]:
    """``--extra``: the connector's own settings as a JSON object."""
    return read_option("--extra", text)


def with_spec(spec: str, extra: str | None) -> str:
    """``--spec``: extra settings for OffloadingConnector over ``module:Class``, or an installed medium."""
    module, colon, name = spec.rpartition(":")
    if not name or (colon and not module):
        raise ConfigError(f"--spec: expected module:Class or the name of an installed medium, got {spec!r}")
    if colon:
        refuse_files("--spec", module, name)
    elif "." in spec:
        module, _, name = spec.rpartition(".")
        raise ConfigError(f"--spec {spec!r}: expected module:Class, as in {module}:{name}, or an installed medium")
    own = {"spec_name": name, **({"spec_module_path": module} if colon else {})}
    return json.dumps({**own, **(parse_extra(extra) if extra is not None else {})})


def refuse_files(option: str, module: str, name: str) -> None:
    """A module is named as in an import; who gives its file is told how."""
    path = Path(module)
    if path.name != module or path.suffix == ".py":
        raise ConfigError(
            f"{option} {f'{module}:{name}'!r}: expected module:Class, and a module's name instead of its file: "
            f"{path.stem}:{name}, with its folder on PYTHONPATH if it isn't this one"
        )


def parse_traits(text: str) -> frozenset[Trait]:
    """``--traits``: names with commas between them, or ``none``."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    if names == [NO_TRAITS]:
        return frozenset()
    if not names:
        raise ConfigError(f"--traits: expected names with commas between them, or {NO_TRAITS!r}, got {text!r}")
    for name in names:
        if name not in list(Trait):
            raise ConfigError(f"--traits: {unknown_name('trait', name, [trait.value for trait in Trait])}")
    return frozenset(map(Trait, names))


def split_names(text: str) -> list[str]:
    """What an option names that takes several, with commas between them."""
    return [name.strip() for name in text.split(",")]


def parse_checkers(names: Sequence[str]) -> frozenset[Invariant]:
    """``--without``: the invariants whose checkers are switched off."""
    by_name = {str(invariant): invariant for invariant in Invariant}
    for name in names:
        if name.upper() not in by_name:
            hint = did_you_mean(name, by_name)
            raise ConfigError(f"--without: unknown checker {name!r}; known: {', '.join(by_name)}{hint}")
    return frozenset(by_name[name.upper()] for name in names)


def parse_seed(text: str, option: str = "--seed") -> int:
    """A seed: any whole number, also as ``0x…``, so that a commit's hash is one."""
    try:
        return int(text, 0)
    except ValueError:
        raise ConfigError(f"{option}: a seed is a whole number or 0x…, got {text!r}") from None


def check_numbers(options: argparse.Namespace) -> None:
    """Numbers that options count with are positive and finite."""
    for name in ("minutes", "histories", "jobs", "actions"):
        value = getattr(options, name, None)
        if value is not None and value <= 0:
            raise ConfigError(f"--{name}: more than 0, got {value}")
        if isinstance(value, float) and not isfinite(value):
            raise ConfigError(f"--{name}: a finite number, got {value}")
    timeout = getattr(options, "call_timeout", 0)
    if not 0 <= timeout < inf:
        raise ConfigError(f"--call-timeout: at least 0 seconds, got {timeout:g}")


def check_folder(option: str, folder: str | None) -> None:
    """A folder to save in is one, or can be made; it isn't made before there is something to save."""
    if folder is None:
        return
    place = Path(folder)
    nearest = next(path for path in (place, *place.absolute().parents) if os.path.lexists(path))
    if not os.path.isdir(nearest):
        raise ConfigError(f"{option} {folder}: {nearest} is no folder")
    if nearest is not place and not os.access(nearest, os.W_OK | os.X_OK):
        raise ConfigError(f"{option} {folder}: no permission to create it in {nearest}")


def choose_seeds(seed: str | None, seeds: str | None, histories: int | None, usual: int) -> range:
    """The seeds to run: ``--seed N``, ``--seeds A-B`` (both ends too), or ``--histories`` from N or 0."""
    if seeds is not None:
        if seed is not None or histories is not None:
            raise ConfigError("--seeds already says which seeds to run: leave out --seed and --histories")
        found = re.fullmatch(r"(\w+)-(\w+)", seeds)
        if found is None:
            raise ConfigError(f"--seeds: expected A-B, got {seeds!r}")
        first, last = (parse_seed(text, "--seeds") for text in found.groups())
        if last < first:
            raise ConfigError(f"--seeds: {last} comes before {first}")
        return range(first, last + 1)
    start = parse_seed(seed) if seed is not None else 0
    many = histories if histories is not None else 1 if seed is not None else usual
    return range(start, start + many)
