"""Finds the files of a trace: one that ships with kv-sim, a file, or those of a folder that look like traces."""

import os
import re
from importlib import resources
from pathlib import Path
from typing import Final

from kv_api import ConfigError
from kv_sim.replay.readers.files.columnar import has_rows, is_columnar
from kv_sim.replay.readers.files.lines import lines_of

SHIPPED: Final = ("mooncake-conversation", "mooncake-synthetic")
"""Traces that come with this package, by name."""

_SUFFIXES: Final = (".json", ".jsonl", ".ndjson", ".csv", ".tsv", ".txt", ".log", ".parquet", ".arrow", ".feather")
_BESIDE: Final = (
    *("dataset_info.json", "dataset_dict.json", "state.json", "sessions-index.json"),
    *("user.json", "users.json", "projects.json", "memories.json"),
    *("message_feedback.json", "model_comparisons.json", "shared_conversations.json"),
    *("ui_messages.json", "task_metadata.json", "context_history.json", "history_item.json", "settings.json"),
)
"""What Hugging Face's datasets keep beside their rows, Claude Code beside its transcripts, exports of ChatGPT and
of Claude.ai beside their chats, and Cline and Roo Code beside what they asked."""
_FOLDERS_BESIDE: Final = ("tool-results",)
"""The same of whole folders: those are what tools printed."""
_PACKED: Final = (".xz", ".gz", ".bz2", ".zst")
_TWICE: Final = "a trace is a file, since it is opened more than once: save it first"

_ROTATED: Final = re.compile("[.][0-9]{1,4}$|[.-][0-9]{4}-?[0-9]{2}-?[0-9]{2}([-_t.][0-9]{2}([-_]?[0-9]{2})*)?$")
"""The end of a rotated log's name: app.log.2, app.log-20260131."""
_TEXT_AND_NUMBER: Final = re.compile(r"([^0-9]*)([0-9]*)")

_NAMES_SHOWN: Final = 3
_MOST_OF_NOTHING: Final = 1 << 12
"""A larger file isn't checked for being empty before it is read."""


def files_of(path: str | Path) -> list[Path]:
    """The files of a trace: a shipped one by its name, a file, or the files of a folder by their names."""
    name, place = str(path), Path(path)
    if name in SHIPPED and not place.exists():
        found = resources.files("kv_sim.replay") / "traces" / f"{name}.jsonl.xz"
        return [Path(str(found))]
    if place.is_dir():
        files = [file for file in _within(place) if _looks_like_a_trace(file, place)]
        if not files:
            known = " ".join(_SUFFIXES)
            raise ConfigError(
                f"{path}: there is no trace in this folder ({known}, also with {' '.join(_PACKED)})"
                f"{'; other files: ' if (others := left_out_of(path)) else ''}{others}"
            )
        return [file for file in files if not _is_empty(file)] or files
    if not place.exists():
        if name == "-":
            raise ConfigError(f"{path}: {_TWICE}")
        raise ConfigError(f"{path}: there is no such file; traces that ship with kv-sim: {', '.join(SHIPPED)}")
    if not place.is_file():
        raise ConfigError(f"{path}: this is {_kind(place)}, and {_TWICE}")
    return [place]


def left_out_of(path: str | Path) -> str:
    """How many files of a folder are no trace, judged by their names, and the first of them. Empty: none."""
    place = Path(path)
    return _named([file for file in _within(place) if not _looks_like_a_trace(file, place)], place)


def empty_of(path: str | Path) -> str:
    """The same for empty traces, such as those of an hour without requests."""
    place = Path(path)
    return _named([file for file in _within(place) if _looks_like_a_trace(file, place) and _is_empty(file)], place)


def twice_of(path: str | Path) -> str:
    """The same for traces that are there packed and unpacked."""
    place = Path(path)
    files = [file for file in _within(place) if _looks_like_a_trace(file, place)]
    packed = {str(file).removesuffix(end) for file in files for end in _PACKED if file.name.endswith(end)}
    return _named([file for file in files if str(file) in packed], place)


def rotated_of(path: str | Path) -> str:
    """The same for rotated logs, judged by their names, or copies that are named like them."""
    place = Path(path)
    files = [file for file in _within(place) if _looks_like_a_trace(file, place)]
    return _named([file for file in files if _ROTATED.search(_unpacked(file))], place)


def _unpacked(file: Path) -> str:
    name = file.name.lower()
    for packed in _PACKED:
        name = name.removesuffix(packed)
    return name


def _named(files: list[Path], place: Path) -> str:
    names = [file.relative_to(place).as_posix() for file in files]
    more = ", …" if len(names) > _NAMES_SHOWN else ""
    return f"{len(names)} ({', '.join(names[:_NAMES_SHOWN])}{more})" if names else ""


def _is_empty(file: Path) -> bool:
    """Whether a file, packed or not, has only blank lines, or as Parquet or Arrow no rows."""
    if is_columnar(file):
        return not has_rows(file)
    return file.stat().st_size <= _MOST_OF_NOTHING and next(lines_of(file), None) is None


def _within(place: Path) -> list[Path]:
    """All files below a folder by name, with numbers compared as numbers: ``part-2`` before ``part-10``."""
    if not place.is_dir():
        return []
    found = (Path(folder, name) for folder, _, names in os.walk(place, onerror=_refuse) for name in names)
    return sorted((file for file in found if file.is_file()), key=_place_of)


def _refuse(error: OSError) -> None:
    """Raise an error for a folder that can't be listed, which would otherwise seem empty."""
    raise ConfigError(f"{error.filename}: {error.strerror}")


def _place_of(file: Path) -> tuple[list[list[tuple[str, int]]], Path]:
    """A key for sorting: texts and numbers in turn, for each folder on the way; the name itself breaks ties."""
    pairs = [_TEXT_AND_NUMBER.findall(part) for part in file.parts]
    return [[(text, int(number or -1)) for text, number in found] for found in pairs], file


def _kind(place: Path) -> str:
    if place.is_fifo():
        return "a pipe"
    return "a socket" if place.is_socket() else "a device"


def _looks_like_a_trace(file: Path, place: Path) -> bool:
    """Whether a file may be a trace, by its name and its folders' names. Hidden ones belong to other programs."""
    *folders, last = file.relative_to(place).parts
    if last.startswith(".") or any(name.startswith(".") or name in _FOLDERS_BESIDE for name in folders):
        return False
    name = _ROTATED.sub("", _unpacked(file))
    return name.endswith(_SUFFIXES) and name not in _BESIDE
