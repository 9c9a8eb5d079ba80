"""The HDF5 file: how it is made, filled, committed, closed and read.  Only the root imports this.

Its names are loaded when they are first asked for: a process that reads a file loads nothing that
writes or runs envs.
"""

from importlib import import_module
from typing import Any

_MODULES = {
    "Ending": "writer",
    "EpisodeTable": "episodes",
    "Output": "output",
    "Schema": "schema",
    "Writer": "writer",
    "check_output": "output",
    "open_output": "output",
    "open_unmarked": "unmarked",
    "open_writer": "opening",
    "rows_per_block": "schema",
}
__all__ = [*_MODULES]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
