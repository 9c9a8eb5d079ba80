"""Collect reinforcement-learning experience over MPI ranks into one HDF5 file.

Importing this package starts no MPI and reads no file: it works on a login node.
"""

from typing import Any

__version__ = "0.1.0"
__all__ = ["RankError", "connect"]


def __getattr__(name: str) -> Any:
    """Load what a trainer needs when it is first asked for: what only reads files starts without Gymnasium."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from mpi_rollout.ranks.driver import RankError
    from mpi_rollout.train.connect import connect

    return {"RankError": RankError, "connect": connect}[name]


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
