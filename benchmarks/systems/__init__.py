"""The systems that `compare.py` measures: one table.  A module for each library has how its envs are made and stepped.

Those of `python -m mpi_rollout compare` come first; the functions here are like those there.  Another Python may run
the modules of other libraries: they need NumPy and some Gymnasium.
"""

import importlib.util
from functools import cache

from mpi_rollout.studies import compare
from mpi_rollout.studies.compare import Setup, System, systems_of

KERNELS = {"CartPole-v1": {kind.lower(): f"mpi_rollout/CartPole{kind}-v0" for kind in ("Numba", "Torch", "CUDA")}}
GYMNAX = ("CartPole-v1", "Acrobot-v1", "Pendulum-v1", "MountainCar-v0", "MountainCarContinuous-v0")
FORMS = {  # How this program has native envs as slices: their words in titles, and the package that they need.
    "native": ("vector_entry_point", ""),
    "envpool": ("EnvPool slices", "envpool"),
    "numba": ("Numba kernel", "numba"),
    "torch": ("torch kernel", "torch"),
    "cuda": ("CUDA kernel", "numba"),
    "jax": ("JAX slices (gymnax)", "gymnax"),
}
EVEN = ("puffer-multi", "torchrl-parallel", "torchrl-collector", "rllib-remote", "sample-factory")  # Envs of a process.
PROCESS_EACH = ("async", "sb3-subproc", "tianshou-subproc", "tianshou-shmem")
FEW = 64  # A process for each of more envs would take for ever.


def all_systems(num_cores: int) -> dict[str, System]:
    """All systems by name, in the order of tables."""
    here = systems_of(num_cores, num_cores)
    pool = System("pool", f"process pool, {num_cores} processes", "systems.pool:pool", least=num_cores)
    systems = [
        *here[:2],
        *_ours(num_cores),
        *here[3:5],
        pool,
        *here[5:-1],
        *_peers(num_cores),
        *_native(num_cores),
        *_slices(num_cores),
    ]
    systems += [
        System("minari", "Minari DataCollector, recording", "systems.minari_:collector", needs="minari", kind="record"),
        System(f"mpi-record-{num_cores}", f"mpi_rollout, {num_cores} ranks, recording", "systems.ours:record",
               least=num_cores, kind="record"),
    ]  # fmt: skip
    return {system.name: system for system in systems}


def _ours(cores: int) -> list[System]:
    """This program's ways to step the env itself."""
    at, title = "systems.ours:", f"mpi_rollout, {cores} ranks"
    return [
        System("mpi-1", "mpi_rollout, 1 rank", f"{compare.__name__}:mpi", 1),
        System(f"mpi-{cores}", title, f"{compare.__name__}:mpi", cores, cores),
        System(f"mpi-fragments-{cores}", f"{title}, fragments", at + "fragments", cores, cores, kind="ahead"),
        System("mpi-groups", f"{title} and a root, 2 groups", at + "groups", cores + 1, 2 * cores),
        System("mpi-ready", f"{title} and a root, first ready", at + "first_ready", cores + 1, cores),
        System(f"mpi-run-{cores}", f"{title}, run", at + "run", least=cores, kind="sampler"),
    ]


def _slices(cores: int) -> list[System]:
    """Native envs as slices of this program: step by step, and by `run`, whose ranks choose the actions."""
    systems = []
    for form, (words, needs) in FORMS.items():
        title = f"mpi_rollout, {cores} ranks, {words}"
        stepped = System(f"mpi-{form}-{cores}", title, f"systems.ours:{form}", cores, cores, needs, "native")
        run = System(f"mpi-{form}-run-{cores}", f"{title}, run", f"systems.ours:{form}_run", 0, cores, needs, "native")
        systems += [stepped, run]
    return systems


def _peers(cores: int) -> list[System]:
    """What people use instead."""
    return [
        System("puffer-serial", "PufferLib Serial", "systems.puffer:serial", needs="pufferlib"),
        System("puffer-multi", f"PufferLib Multiprocessing, {cores} workers", "systems.puffer:workers", 0, cores,
               "pufferlib"),
        System("tianshou-dummy", "Tianshou DummyVectorEnv", "systems.tianshou_:dummy", needs="tianshou"),
        System("tianshou-subproc", "Tianshou SubprocVectorEnv", "systems.tianshou_:subproc", needs="tianshou"),
        System("tianshou-shmem", "Tianshou ShmemVectorEnv", "systems.tianshou_:shmem", needs="tianshou"),
        System("torchrl-serial", "TorchRL SerialEnv", "systems.torchrl_:serial", needs="torchrl"),
        System("torchrl-parallel", f"TorchRL ParallelEnv, {cores} workers", "systems.torchrl_:parallel", 0, cores,
               "torchrl"),
        System("torchrl-collector", f"TorchRL MultiSyncCollector, {cores} workers", "systems.torchrl_:collector", 0,
               cores, "torchrl", "sampler"),
        System("rllib-local", "RLlib EnvRunner, local", "systems.rllib:local", needs="ray", kind="sampler"),
        System("rllib-remote", f"RLlib EnvRunners, {cores} remote runners", "systems.rllib:remote", 0, cores, "ray",
               "sampler"),
        System("sample-factory", f"Sample Factory's sampler, {cores} workers", "systems.samplefactory:sampler", 0,
               cores, "sample_factory", "sampler"),
    ]  # fmt: skip


def _native(cores: int) -> list[System]:
    """Systems that have another implementation of the env."""
    of_envpool = {"needs": "envpool", "kind": "native"}
    return [
        System("native", "Gymnasium vector_entry_point", "systems.native:entry_point", kind="native"),
        System("envpool-1", "EnvPool, sync, 1 thread", "systems.native:envpool_1", **of_envpool),
        System("envpool-async-1", "EnvPool, async, 1 thread", "systems.native:envpool_async_1", 0, 2, **of_envpool),
        System("envpool", f"EnvPool, sync, {cores} threads", f"{compare.__name__}:envpool", **of_envpool),
        System("envpool-async", f"EnvPool, async, {cores} threads", "systems.native:envpool_async", 0, 2, **of_envpool),
        System("numba", f"Numba kernel, {cores} cores", "systems.native:numba", cores, cores, "numba", "native"),
        System("torch", f"torch kernel, {cores} cores", "systems.native:torch", cores, cores, "torch", "native"),
        System("cuda", "CUDA kernel, 1 process", "systems.native:cuda", needs="numba", kind="native"),
        System("gymnax", "gymnax, jitted scan", "systems.gymnax_:scan", needs="gymnax", kind="native"),
    ]


def reason_to_skip(system: System, setup: Setup, pythons: dict[str, str]) -> str:
    """Why a system cannot be measured at a point; empty if it can."""
    env, num_envs = setup.env["env"], setup.num_envs
    if system.needs and system.needs not in pythons and importlib.util.find_spec(system.needs) is None:
        return f"{system.needs} is not installed; install it, or name another: --python {system.needs}=PYTHON"
    if num_envs > FEW and system.name in PROCESS_EACH:
        return "a process for each env"
    if system.name in EVEN and num_envs % setup.num_cores:
        return f"{num_envs} envs for {setup.num_cores} processes, which all get as many"
    if system.needs == "minari" and num_envs > 1:
        return "it records one env"
    return reason_of_form(system, env) or ("" if system.needs in pythons else system.reason_to_skip(setup))


@cache
def reason_of_form(system: System, env: str) -> str:
    """Say whether the env lacks the form in which a system steps it."""
    import gymnasium

    if "cuda" in system.name:
        from numba import cuda

        if not cuda.is_available():
            return "there is no GPU that Numba can use"
    if system.needs in ("numba", "torch"):
        return "" if system.needs in KERNELS.get(env, {}) else "there is no kernel of this env"
    if system.needs == "gymnax":
        return "" if env in GYMNAX else "gymnax has no such env"
    if system.name == "native" or system.name.startswith("mpi-native"):
        return "" if gymnasium.spec(env).vector_entry_point else "the env has no vectorized version of its own"
    return ""
