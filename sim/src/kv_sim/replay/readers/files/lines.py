"""Reads the lines of a file, decompressed; errors name file and line."""

import bz2
import gzip
import importlib
import io
import lzma
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Final

from kv_api import ConfigError

try:
    zstd: Any = importlib.import_module("compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd")
except ImportError:
    zstd = None

_XZ, _GZIP, _ZSTD, _BZIP2 = b"\xfd7zXZ\0", b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"BZh"
_SKIPPED: Final = b"\x2a\x4d\x18"
"""After a byte of 0x50 to 0x5f: a skippable frame of zstd's, with which pzstd's files begin."""

_PICKLE: Final = "Python's pickle, as SGLang dumps requests"
_OTHERS: Final = {
    b"\xff\xfe": "text in UTF-16",
    b"\xfe\xff": "text in UTF-16",
    b"PK\3\4": "a zip archive",
    b"\x80\2": _PICKLE,
    b"\x80\3": _PICKLE,
    b"\x80\4": _PICKLE,
    b"\x80\5": _PICKLE,
    b"SQLite format 3\0": "a database of SQLite",
    b"FEA1": "Feather's first version",
    b"Obj\1": "Avro",
    b"ORC": "ORC",
    b"\x89HDF\r\n": "HDF5",
    b"\x04\x22\x4d\x18": "packed with lz4",
    b"\xff\x06\0\0sNaPpY": "packed with snappy",
    b"7z\xbc\xaf": "an archive of 7-Zip",
}
"""The first bytes of other kinds of files, and what these are."""

_TEXT: Final = "; a trace is text in UTF-8, JSON lines, JSON or a table, or Parquet or Arrow"
BrokenFile = (EOFError, lzma.LZMAError, gzip.BadGzipFile, zlib.error, *([zstd.ZstdError] if zstd else []))


def open_text(path: Path) -> IO[str]:
    """Open a file as text, unpacked according to its first bytes.

    Bytes that aren't UTF-8 become lone surrogates.
    """
    with path.open("rb") as file:
        magic = file.read(16)
    if magic[:6] == _XZ:
        binary: Any = lzma.open(path, "rb")  # noqa: SIM115 - whoever reads the text closes it
    elif magic[:2] == _GZIP:
        binary = gzip.open(path, "rb")  # noqa: SIM115
    elif magic[:3] == _BZIP2:
        binary = bz2.open(path, "rb")  # noqa: SIM115
    elif magic[:4] == _ZSTD or (magic[1:4] == _SKIPPED and magic[0] >> 4 == 5):
        binary = _open_zstd(path)
    else:
        _refuse_other(path, magic)
        binary = path.open("rb")
    return io.TextIOWrapper(binary, encoding="utf-8-sig", errors="surrogateescape", newline=None)


def _refuse_other(path: Path, magic: bytes) -> None:
    for begin, what in _OTHERS.items():
        if magic.startswith(begin):
            raise ConfigError(f"{path}: this is {what}{_TEXT}")
    if b"\0" in magic[:2] and len(magic) > 1 and magic[:2] != b"\0\0":
        raise ConfigError(f"{path}: this is text in UTF-16{_TEXT}")


def refuse_by_line(path: Path, line: str) -> None:
    """Refuse, by its first line, a file that is no trace: a tar archive, a page of HTML, a Git LFS pointer."""
    if line[257:262] == "ustar":
        raise ConfigError(f"{path}: this is a tar archive{_TEXT}")
    if line.startswith("version https://git-lfs.github.com/spec/"):
        raise ConfigError(f"{path}: this stands for a file that Git LFS keeps; git lfs pull brings it")
    if line.lstrip()[:9].lower() == "<!doctype" or line.lstrip()[:5].lower() == "<html":
        raise ConfigError(f"{path}: this is a page of HTML, maybe that of a site in place of the file{_TEXT}")


def _open_zstd(path: Path) -> Any:
    if zstd is None:
        raise ConfigError(
            f"{path}: packed with zstd, which Python reads by itself from 3.14 on, and before with the package "
            "backports.zstd: pip install 'kv-sim[zstd]', or unpack it"
        )
    return zstd.open(path, "rb")


def lines_of(path: Path) -> Iterator[tuple[int, str]]:
    """The lines that aren't blank, numbered from 1."""
    return ((number, line) for number, line in all_lines(path) if not line.isspace())


def whole_text(path: Path) -> str:
    """The text of a file that is one document."""
    return "".join(line for _, line in all_lines(path))


def first_bad_byte(text: str) -> int | None:
    """The place of the first byte that isn't UTF-8; None: there is none."""
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            return error.start
    return None


def all_lines(path: Path) -> Iterator[tuple[int, str]]:
    """All lines, numbered from 1."""
    number = 0
    try:
        with open_text(path) as text:
            for number, line in enumerate(text, 1):
                yield number, line
    except BrokenFile as error:
        raise ConfigError(f"{path}: truncated or damaged after line {number}: {error}") from None
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from None
