"""The rows of a table: cells with commas, tabs, semicolons or bars between them, in quotes where such are inside.

A cell in quotes may go on over several lines. A quote that isn't closed within some lines is taken for a mistake
of its own line, so that it doesn't hide all that follows.
"""

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any, Final

_BETWEEN: Final = ",\t;|"
"""What may stand between the columns: whichever the header has most of."""
_MOST_LINES: Final = 1000
"""Over how many lines one row may go."""

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
            if name in self.names[:place]:  # which of them is meant?
                raise ValueError(f"two columns are called {name!r:.60}")

    def rows(self, lines: Iterator[tuple[int, str]]) -> Iterator[tuple[int, str, list[str] | None]]:
        """Where each row begins, what it is, and its cells; None: a quote in it is not closed."""
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
        """The cells of a row by the names of their columns, or what is wrong with them."""
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
    """What stands in quotes from there on, in which two of them are one; and where it ends."""
    parts = []
    while (end := text.find('"', at)) >= 0:
        if not text.startswith('""', end):
            parts.append(text[at:end])
            return "".join(parts), end + 1
        parts.append(text[at : end + 1])
        at = end + 2
    return None
