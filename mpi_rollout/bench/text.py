"""What reports of all kinds of study have in common."""

from collections.abc import Sequence
from typing import Any

from mpi_rollout.errors import counted


def machine(host: str, facts: dict[str, Any]) -> str:
    """Host, processor and cores."""
    cores = facts["num_cores"]
    return f"{host} ({facts['cpu_model']}, {counted(cores, 'core')})"


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Cells as columns, each flush right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
