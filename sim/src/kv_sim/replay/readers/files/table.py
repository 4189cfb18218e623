"""The rows of a table: cells separated by commas, tabs, semicolons or bars, and quoted if these are inside.

A cell in quotes may span several lines. A quote that isn't closed within `_MOST_LINES` lines is taken as a mistake
in its own line, so that it doesn't hide all following lines.
"""

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any, Final

_BETWEEN: Final = ",\t;|"
"""The possible separators; the one that is most frequent in the header is taken."""
_MOST_LINES: Final = 1000
"""The most lines that one row may span."""

NOT_CLOSED: Final = "a quote is not closed"


class Table:
    """How the rows of one table are read, as its header says."""

    def __init__(self, header: str) -> None:
        """Raises `ValueError`."""
        text = header.rstrip("\n")
        self._between = max(_BETWEEN, key=text.count)
        found = cells_of(text, self._between)
        if found is None:
            raise ValueError(NOT_CLOSED)
        self.names = [name.strip() for name in found]
        for place, name in enumerate(self.names):
            if name in self.names[:place]:  # it would be unclear which of them is meant
                raise ValueError(f"two columns are called {name!r:.60}")

    def rows(self, lines: Iterator[tuple[int, str]]) -> Iterator[tuple[int, str, list[str] | None]]:
        """For each row its first line's number, its text, and its cells; None: a quote in it is not closed."""
        ahead: deque[tuple[int, str]] = deque()
        while (first := _next(ahead, lines)) is not None:
            number, line = first
            text = line.rstrip("\n")
            if text.isspace() or not text:
                continue
            more: list[tuple[int, str]] = []
            cells = cells_of(text, self._between)
            while cells is None and len(more) < _MOST_LINES and (later := _next(ahead, lines)) is not None:
                more.append(later)
                text = f"{text}\n{later[1].rstrip(chr(10))}"
                if '"' in later[1]:
                    cells = cells_of(text, self._between)
            if cells is None:
                ahead.extendleft(reversed(more))
                text = line.rstrip("\n")
            yield number, text, cells

    def named(self, cells: list[str]) -> Mapping[str, Any] | str:
        """The cells of a row by column names, or what is wrong with the row."""
        if len(cells) != len(self.names):
            return f"{len(cells)} columns, expected {len(self.names)}: {', '.join(self.names)}"
        return dict(zip(self.names, cells, strict=True))


def _next(ahead: deque[tuple[int, str]], lines: Iterator[tuple[int, str]]) -> tuple[int, str] | None:
    return ahead.popleft() if ahead else next(lines, None)


def cells_of(text: str, between: str) -> list[str] | None:
    """The cells of a row; None if a quote in it is not closed."""
    if '"' not in text:
        return text.split(between)
    cells, at = [], 0
    while True:
        cell = ""
        if text.startswith('"', at):
            quoted = _quoted(text, at + 1)
            if quoted is None:
                return None
            cell, at = quoted
        stop = text.find(between, at)
        cells.append(cell + text[at : len(text) if stop < 0 else stop])
        if stop < 0:
            return cells
        at = stop + len(between)


def _quoted(text: str, at: int) -> tuple[str, int] | None:
    """The text in quotes that begins at ``at``, with doubled quotes made single; and where it ends."""
    parts = []
    while (end := text.find('"', at)) >= 0:
        if not text.startswith('""', end):
            parts.append(text[at:end])
            return "".join(parts), end + 1
        parts.append(text[at : end + 1])
        at = end + 2
    return None
