"""Where a system does not apply, and why."""

import importlib.util
from collections.abc import Mapping
from functools import cache

import gymnasium

from mpi_rollout.bench.compare.forms import GYMNAX, envpool_id, kernel_of
from mpi_rollout.bench.compare.pythons import missing
from mpi_rollout.bench.compare.systems import System
from mpi_rollout.core.partition import Division
from mpi_rollout.errors import UsageError, counted

HERE: Mapping[str, str] = {}


def reason_to_skip(system: System, env: str, num_envs: int, num_cores: int, pythons: Mapping[str, str] = HERE) -> str:
    """Say why a system cannot be measured at a point; empty if it can.

    Parameters
    ----------
    pythons
        By package, other Pythons that have it.
    """
    return (
        missing(system.needs, pythons)
        or _reason_of_form(system, env)
        or _reason_of_division(system, num_envs, num_cores)
        or (_reason_of_minari(num_envs) if system.needs == "minari" else "")
        or (_reason_of_envpool(system, env, num_envs) if system.needs == "envpool" and "envpool" not in pythons else "")
    )


def _reason_of_form(system: System, env: str) -> str:
    """Say whether the env lacks the form in which the system steps it."""
    if system.name == "native" or system.form == "vector_entry_point":
        spec = gymnasium.spec(env)
        return "" if spec.vector_entry_point is not None else "the env has no vectorized version of its own"
    if system.form in ("numba", "torch"):
        return "" if kernel_of(system.form, env) else "there is no kernel of this env"
    if system.needs == "gymnax":
        return "" if env in GYMNAX else "gymnax has no such env"
    return ""


def _reason_of_division(system: System, num_envs: int, num_cores: int) -> str:
    if system.is_ours:
        return _reason_of_ranks(system, num_envs)
    if system.division and num_envs < num_cores:
        return f"{counted(num_envs, 'env')} for {num_cores} processes"
    if system.division == "equal" and num_envs % num_cores:
        return f"{counted(num_envs, 'env')} for {num_cores} processes, which all get as many"
    return ""


def _reason_of_ranks(system: System, num_envs: int) -> str:
    options = dict(system.options)
    is_dedicated, num_groups = "dedicated_root" in options, int(options.get("num_groups", 1))
    try:
        Division(num_envs, system.num_ranks, is_dedicated, num_groups, "batch_size" in options)
    except UsageError:
        workers = f"{counted(num_envs, 'env')} for {system.num_ranks - is_dedicated} ranks that step envs"
        return workers + f", in {num_groups} groups" * (num_groups > 1)
    return ""


def _reason_of_minari(num_envs: int) -> str:
    if importlib.util.find_spec("jax") is None:
        return "minari records with jax, which is not installed; pip install 'minari[create]'"
    return "it records one env" if num_envs > 1 else ""


def _reason_of_envpool(system: System, env: str, num_envs: int) -> str:
    if "by_parts" in system.maker and num_envs < 2:
        return "half of 1 env"
    try:
        known = _envs_of_envpool()
    except Exception as error:  # Built against another NumPy, C++ library, processor, ...
        return f"import envpool: {type(error).__name__}: {error}".splitlines()[0]
    return "" if envpool_id(env) in known else f"EnvPool has no {envpool_id(env)}"


@cache
def _envs_of_envpool() -> frozenset[str]:
    import envpool

    return frozenset(envpool.list_all_envs())
