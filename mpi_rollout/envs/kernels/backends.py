"""Which backends there are, and what each needs.  A backend's packages are imported when an env is made with it."""

from importlib import import_module
from typing import Any

from mpi_rollout.envs.kernels.task import Backend, Task
from mpi_rollout.errors import UsageError

# Name: the module, its class, and the package it needs, which is also the name of an extra.
BACKENDS = {
    "numba": ("mpi_rollout.envs.kernels.numba_cpu", "NumbaBackend", "numba"),
    "torch": ("mpi_rollout.envs.kernels.torch_tensors", "TorchBackend", "torch"),
    "cuda": ("mpi_rollout.envs.kernels.numba_cuda", "CUDABackend", "cuda"),
}
OPTIONS = {"numba": (), "torch": ("device",), "cuda": ("device", "threads_per_block")}


def backend_of(name: str, task: Task, **options: Any) -> Backend:
    """Make the backend of a task.  Options that are None are left out.

    Raises
    ------
    UsageError
        Its package is missing, or it does not take an option, or there is no such device.
    """
    given = {option: value for option, value in options.items() if value is not None}
    for option in given:
        if option not in OPTIONS[name]:
            raise UsageError(f"CartPole on {name} takes no {option}, got {given[option]!r}")
    return backend_class(name)(task, **given)


def backend_class(name: str) -> Any:
    """Import a backend."""
    module, class_name, extra = BACKENDS[name]
    try:
        return getattr(import_module(module), class_name)
    except ImportError as error:
        raise UsageError(f"CartPole on {name} needs a package ({error}); pip install 'mpi_rollout[{extra}]'") from error


def prepare_numba() -> None:
    """Have Numba compile the kernel for CPUs, or load it from its cache."""
    backend_class("numba")(Task())
