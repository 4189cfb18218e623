"""The files that a command writes. They are checked before anything runs; errors name their option."""

import argparse
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from kv_api import ConfigError
from kv_sim.replay.readers.files.folder import files_of

PRINTED: Final = "-"
"""The value of ``--json`` that prints instead of writing a file."""

_OPTIONS: Final[Mapping[str, str]] = {"--json": "json", "--html": "html", "--write-oracle": "write_oracle"}
"""option -> its name in the parsed options"""


def check_outputs(options: argparse.Namespace) -> None:
    """Refuse files that can't be written, or that would overwrite an input, before the work begins."""
    outputs = _outputs_of(options)
    for option, place in outputs.items():
        if not Path(os.path.realpath(place)).parent.is_dir():
            raise ConfigError(f"{option} {place}: there is no such folder")
        if Path(place).is_dir():
            raise ConfigError(f"{option} {place}: this is a folder, expected the path of a file")
    if outputs:
        refuse_same(outputs, options.trace, files_of(options.trace))


def refuse_same(outputs: Mapping[str, str], trace: str, files: Iterable[Path]) -> None:
    """Refuse an output that is the same file as an input or another output."""
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
    """Make errors of writing a file name the option that gave it."""
    try:
        yield
    except BrokenPipeError:  # the reader of the pipe has ended
        raise
    except OSError as error:
        raise ConfigError(f"{option} {place}: {error.strerror or error}") from None


def _keeps_nothing(place: str) -> bool:
    """Whether writing there overwrites nothing: a device or a pipe."""
    return Path(place).exists() and not Path(place).is_file()


def _outputs_of(options: argparse.Namespace) -> dict[str, str]:
    """The command's output files by option, as far as they are given."""
    given = {option: getattr(options, name, None) for option, name in _OPTIONS.items()}
    return {
        option: place
        for option, place in given.items()
        if place is not None and (option, place) != ("--json", PRINTED)
    }


def _identity(place: str) -> tuple[int, int] | str:
    """A key that is equal for all names of one file, links included; for a new file, its future place."""
    try:
        found = os.stat(place)
    except OSError:
        return os.path.realpath(place)
    return found.st_dev, found.st_ino
