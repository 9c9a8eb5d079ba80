"""Collect reinforcement-learning experience over MPI ranks into one HDF5 file.

Importing this package starts no MPI and reads no file: it works on a login node.
"""

from importlib import import_module

TYPE_CHECKING = False  # `typing` takes time to import.
if TYPE_CHECKING:  # What users import; each is loaded when it is first asked for.
    from mpi_rollout.data.opening import open as open
    from mpi_rollout.errors import ActionError as ActionError
    from mpi_rollout.errors import AlreadyComplete as AlreadyComplete
    from mpi_rollout.errors import DataError as DataError
    from mpi_rollout.errors import EnvError as EnvError
    from mpi_rollout.errors import Interrupted as Interrupted
    from mpi_rollout.errors import LaunchError as LaunchError
    from mpi_rollout.errors import PolicyError as PolicyError
    from mpi_rollout.errors import RankError as RankError
    from mpi_rollout.errors import RankLost as RankLost
    from mpi_rollout.errors import RolloutError as RolloutError
    from mpi_rollout.errors import StorageError as StorageError
    from mpi_rollout.errors import UsageError as UsageError
    from mpi_rollout.launched.vector_env import launch as launch
    from mpi_rollout.train.connect import connect as connect
    from mpi_rollout.train.vector_env import MPIVectorEnv as MPIVectorEnv

__version__ = "0.1.0"

_ERRORS = (
    "ActionError",
    "AlreadyComplete",
    "DataError",
    "EnvError",
    "Interrupted",
    "LaunchError",
    "PolicyError",
    "RankError",
    "RankLost",
    "RolloutError",
    "StorageError",
    "UsageError",
)
_MODULE_OF = dict.fromkeys(_ERRORS, "mpi_rollout.errors") | {
    "connect": "mpi_rollout.train.connect",
    "launch": "mpi_rollout.launched.vector_env",
    "MPIVectorEnv": "mpi_rollout.train.vector_env",
    "open": "mpi_rollout.data.opening",
}
__all__ = sorted(_MODULE_OF)


def __getattr__(name: str) -> object:
    """Load what a user imports: what only reads files starts without Gymnasium."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(_MODULE_OF[name]), name)
    except ImportError:
        from mpi_rollout.process.start import old_packages

        words = old_packages()
        if not words:
            raise
    raise ImportError(words)  # The error above says no more.


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
