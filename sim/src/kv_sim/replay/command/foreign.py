"""Refuses options of cache fidelity that are given with engine fidelity, and names the ones to use instead."""

import argparse
import contextlib
from collections.abc import Mapping
from typing import Any, Final

from kv_api import ConfigError

SAME_IN_ENGINE: Final[Mapping[str, Mapping[str, str]]] = {
    "replay": {"--store-threshold": "--connector-config", "--cache-policy-module-path": "--connector-config"},
    "size": {"--disk": "--disk-capacity", "--host-capacity": "--capacity"},
}
"""For each command: option of cache fidelity -> the equivalent one of engine fidelity"""


def refuse_foreign(options: argparse.Namespace) -> None:
    """Refuse options that only cache fidelity has."""
    for option in getattr(options, "foreign", ()):
        same = SAME_IN_ENGINE[options.command].get(option)
        instead = f"engine has {same}" if same else "--help lists what engine has"
        raise ConfigError(f"{option} works with --fidelity cache only; {instead}")


def add_refused(parser: argparse.ArgumentParser, other: argparse.ArgumentParser) -> None:
    """Add the options that only ``other`` has to an engine's parser, so that it can refuse them by name."""
    for action in other._actions:
        with contextlib.suppress(argparse.ArgumentError):  # the parser has an option of this name itself
            parser.add_argument(
                *action.option_strings, action=_Foreign, nargs=action.nargs, help=argparse.SUPPRESS
            )


class _Foreign(argparse.Action):
    """An option of another fidelity, which is noted so that it can be refused."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        """Note it by its whole name."""
        namespace.foreign = [*getattr(namespace, "foreign", ()), *self.option_strings]
