"""An env in another form: which it is, and the options of a run or of `connect` that make slices of it."""

import re
from typing import Any

KERNELS = {
    "CartPole-v1": {"numba": "mpi_rollout/CartPoleNumba-v0", "torch": "mpi_rollout/CartPoleTorch-v0"},
}
GYMNAX = ("CartPole-v1", "Acrobot-v1", "Pendulum-v1", "MountainCar-v0", "MountainCarContinuous-v0")


def envpool_id(env: str) -> str:
    """Return an env id as EnvPool knows it: Atari's without namespace, others as they are.

    An id with another namespace, or of a module that registers it, is an env of its own, whatever its name.
    """
    return re.sub("^(ale_py:)?ALE/", "", env)


def kernel_of(form: str, env: str) -> str:
    """Return the id of the kernel of an env; empty without one."""
    return KERNELS.get(env, {}).get(form, "")


def run_options(form: str, env: str) -> dict[str, Any]:
    """Return the options of a run that steps an env in a form."""
    entry_point = {"vectorization_mode": "vector_entry_point"}
    match form:
        case "":
            return {"env": env}
        case "envpool":
            return {"env": envpool_id(env), "vectorization_mode": "envpool", "env_kwargs": {"num_threads": 1}}
        case "jax":
            factory = {"env_factory": "mpi_rollout.envs.jax_slices:gymnax", "env_kwargs": {"task": env}}
            return factory | {"vectorization_mode": "native"}
        case "vector_entry_point":
            return {"env": env} | entry_point
        case _:
            return {"env": kernel_of(form, env)} | entry_point


def connect_options(form: str, env: str) -> dict[str, Any]:
    """Return those of `connect`, which takes a callable itself."""
    options = run_options(form, env)
    if "env_factory" not in options:
        return options
    from mpi_rollout.process.loading import load_callable

    factory = options.pop("env_factory")
    return options | {"env": load_callable(factory, "--env-factory")}
