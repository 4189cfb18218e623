"""``write_line``: appends a line to a file while an engine serves; an error of the disk must not stop the engine.

The file has no buffer, so every written line is there even if the engine is killed.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import Any


def write_line(file: Any, text: str, say: Callable[[OSError], None]) -> None:
    """Write the line. If that fails, ``say`` is called once and the file is closed; nothing is written after.

    A part of the line that was written is removed again, so that readers can read every line.
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
