"""The files that a command writes: checked before anything runs, and named when they can't be written."""

import argparse
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from kv_api import ConfigError
from kv_sim.replay.readers.source import files_of

PRINTED: Final = "-"
"""In place of a file for ``--json``: on the screen."""

_OPTIONS: Final[Mapping[str, str]] = {"--json": "json", "--html": "html", "--write-oracle": "write_oracle"}
"""option -> what the parser calls it"""


def check_outputs(options: argparse.Namespace) -> None:
    """A place that can't be written is known before an hour of work, and what would be lost before it is."""
    outputs = _outputs_of(options)
    for option, place in outputs.items():
        if not Path(os.path.realpath(place)).parent.is_dir():
            raise ConfigError(f"{option} {place}: there is no such folder")
        if Path(place).is_dir():
            raise ConfigError(f"{option} {place}: this is a folder, expected the path of a file")
    if outputs:
        refuse_same(outputs, options.trace, files_of(options.trace))


def refuse_same(outputs: Mapping[str, str], trace: str, files: Iterable[Path]) -> None:
    """Each file that is written is another one than those that are read, and than the others."""
    read = {_identity(str(file)): file for file in files}
    written: dict[tuple[int, int] | str, str] = {}
    for option, place in outputs.items():
        same = _identity(place)
        if same in read:
            lost = f"TRACE {trace}" if read[same] == Path(trace) else f"{read[same]} in TRACE {trace}"
            raise ConfigError(f"{option} {place}: it would overwrite {lost}, which is the same file")
        if same in written and not _keeps_nothing(place):
            raise ConfigError(f"{option} {place}: it would overwrite {written[same]}, which is the same file")
        written[same] = f"{option} {place}"


@contextmanager
def writing(option: str, place: str) -> Iterator[None]:
    """What goes wrong with a file is said with the option that names it."""
    try:
        yield
    except BrokenPipeError:  # whoever reads has seen enough
        raise
    except OSError as error:
        raise ConfigError(f"{option} {place}: {error.strerror or error}") from None


def _keeps_nothing(place: str) -> bool:
    """Whether nothing can be lost there: a device, a pipe."""
    return Path(place).exists() and not Path(place).is_file()


def _outputs_of(options: argparse.Namespace) -> dict[str, str]:
    """The files of a command, by option; what it doesn't have isn't there."""
    given = {option: getattr(options, name, None) for option, name in _OPTIONS.items()}
    return {
        option: place
        for option, place in given.items()
        if place is not None and (option, place) != ("--json", PRINTED)
    }


def _identity(place: str) -> tuple[int, int] | str:
    """What two names of one file share, links included; of a file that isn't there yet, where it will be."""
    try:
        found = os.stat(place)
    except OSError:
        return os.path.realpath(place)
    return found.st_dev, found.st_ino
