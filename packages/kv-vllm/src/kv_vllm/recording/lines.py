"""``write_line``: a line of a file that grows while an engine serves, which no disk may stop.

The file is open without a buffer, so what was written is there if the engine is killed.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import Any


def write_line(file: Any, text: str, say: Callable[[OSError], None]) -> None:
    """Write all of it. If that fails the file is closed, which is said once: nothing is written after.

    What was written of the line is taken back, so that what reads lines can read them all.
    """
    line = f"{text}\n".encode()
    left = memoryview(line)
    try:
        while left and not file.closed:
            left = left[file.write(left) :]
    except OSError as error:
        say(error)
        with suppress(OSError):
            file.truncate(file.tell() - (len(line) - len(left)))
        file.close()
