"""Rows of text in reports."""

from collections.abc import Sequence


def aligned(rows: Sequence[Sequence[str]], names_left: bool = False) -> list[str]:
    """Lay out cells as columns, flush right; with `names_left` the first column is flush left."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [cell.rjust(width) for cell, width in zip(row, widths, strict=True)]
        if names_left:
            cells[0] = row[0].ljust(widths[0])
        lines.append("  ".join(cells).rstrip())
    return lines
