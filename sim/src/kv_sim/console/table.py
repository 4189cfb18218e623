"""Tables of plain text."""

from collections.abc import Sequence


def aligned(rows: Sequence[Sequence[str]], left: int = 1) -> list[str]:
    """Rows of cells as lines: the first ``left`` columns to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [
            cell.ljust(w) if i < left else cell.rjust(w)
            for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return lines
