"""Options of cache fidelity that are given to an engine: noted, and refused with what there is instead."""

import argparse
import contextlib
from collections.abc import Mapping
from typing import Any, Final

from kv_api import ConfigError

SAME_IN_ENGINE: Final[Mapping[str, Mapping[str, str]]] = {
    "replay": {"--store-threshold": "--connector-config", "--cache-policy-module-path": "--connector-config"},
    "size": {"--disk": "--disk-capacity", "--host-capacity": "--capacity"},
}
"""of a command, an option of cache fidelity -> the one of engine fidelity that says the same"""


def refuse_foreign(options: argparse.Namespace) -> None:
    """What is of cache fidelity says nothing to an engine."""
    for option in getattr(options, "foreign", ()):
        same = SAME_IN_ENGINE[options.command].get(option)
        instead = f"engine has {same}" if same else "--help lists what engine has"
        raise ConfigError(f"{option} works with --fidelity cache only; {instead}")


def add_refused(parser: argparse.ArgumentParser, other: argparse.ArgumentParser) -> None:
    """Let the parser of an engine know what ``other`` has and it doesn't, so that it can say so."""
    for action in other._actions:
        with contextlib.suppress(argparse.ArgumentError):  # it has its own of this name
            parser.add_argument(
                *action.option_strings, action=_Foreign, nargs=action.nargs, help=argparse.SUPPRESS
            )


class _Foreign(argparse.Action):
    """An option of another fidelity: noted, to be refused."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        """Note it by its whole name."""
        namespace.foreign = [*getattr(namespace, "foreign", ()), *self.option_strings]
