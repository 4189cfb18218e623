"""A progress bar for long work: on a terminal only, and on stderr, so that what a command prints stays clean."""

import sys
from types import TracebackType
from typing import IO, Self

_WIDTH = 30


class ProgressBar:
    """One line that is redrawn; silent unless it is on a terminal. As a context manager it clears the line."""

    def __init__(self, stream: IO[str] | None = None) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._is_seen = self._stream.isatty()
        self._shown = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.clear()

    def count(self, what: str, count: int) -> None:
        """Show work of unknown length."""
        self._draw(f"{what}: {count:,}")

    def share(self, what: str, share: float) -> None:
        """Show which share of work is done."""
        done = min(max(share, 0.0), 1.0)
        filled = round(done * _WIDTH)
        self._draw(f"{what} [{'█' * filled}{'·' * (_WIDTH - filled)}] {done:4.0%}")

    def clear(self) -> None:
        """Clear the line."""
        if self._shown:
            self._stream.write("\r" + " " * len(self._shown) + "\r")
            self._stream.flush()
            self._shown = ""

    def _draw(self, text: str) -> None:
        if not self._is_seen or text == self._shown:
            return
        self._stream.write("\r" + text.ljust(len(self._shown)))
        self._stream.flush()
        self._shown = text
