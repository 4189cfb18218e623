"""``whole_file``: a file that is written as a whole or not at all.

What is written goes into a temporary file of the same folder, which takes the other's place when all of it is
there. Whatever goes wrong before that, a full disk or Ctrl-C, leaves what was there, and nothing beside it.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Final

_STANDARD: Final = (0, 1, 2)
"""What this process was given to read and to write."""


@contextmanager
def whole_file(place: Path) -> Iterator[IO[bytes]]:
    """A file to write bytes to, which is at ``place`` once the block has ended without an exception.

    A file that is there keeps its mode and its owner, and a link stays one: what it leads to is replaced. Where
    nothing can take the other's place it is written directly: a device, a pipe, where this process prints, a file
    that may be written in a folder that may not.
    """
    target = Path(os.path.realpath(place))
    if not _can_be_replaced(place, target):
        with place.open("wb") as file:
            yield file
        return
    temporary = target.with_name(f".kv-sim-{os.getpid()}-{os.urandom(4).hex()}")
    try:
        with temporary.open("xb") as file:
            yield file
        if target.exists():
            _give(temporary, target.stat())
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


def _can_be_replaced(place: Path, target: Path) -> bool:
    if not place.exists():
        return True
    if not target.is_file() or not place.samefile(target):  # one that is open, and has no name any more
        return False
    return not _is_standard(target) and os.access(target, os.W_OK) and os.access(target.parent, os.W_OK | os.X_OK)


def _give(temporary: Path, was: os.stat_result) -> None:
    """Let the new file be whose the old one was, as far as this process may, with the same permissions."""
    with suppress(OSError, AttributeError):  # Windows has no such call
        os.chown(temporary, was.st_uid, was.st_gid)
    temporary.chmod(was.st_mode & 0o7777)


def _is_standard(target: Path) -> bool:
    """Whether what is printed goes there, so that two would write the same file."""
    found = target.stat()
    for number in _STANDARD:
        try:
            given = os.fstat(number)
        except OSError:  # it is closed
            continue
        if os.path.samestat(found, given):
            return True
    return False
