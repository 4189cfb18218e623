"""``write_line``: a line of a file that grows while an engine serves, which no disk may stop.

The file is open without a buffer, so what was written is there if the engine is killed.
"""

from collections.abc import Callable
from typing import Any


def write_line(file: Any, text: str, say: Callable[[OSError], None]) -> None:
    """Write all of it. If that fails the file is closed, which is said once: nothing is written after."""
    left = memoryview(f"{text}\n".encode())
    try:
        while left and not file.closed:
            left = left[file.write(left) :]
    except OSError as error:
        say(error)
        file.close()
