"""What is compared: the systems by name."""

from dataclasses import dataclass

from mpi_rollout.errors import counted

NAMES = (  # R: one of --ranks.
    "bare, bare-all, mpi-R, mpi-fragments-R, mpi-groups, mpi-ready, mpi-run-R, sync, async, pool, sb3-dummy, "
    "sb3-subproc, puffer-serial, puffer-multi, tianshou-dummy, tianshou-subproc, tianshou-shmem, torchrl-serial, "
    "torchrl-parallel, torchrl-collector, rllib-local, rllib-remote, sample-factory; of native envs native, envpool-1, "
    "envpool-async-1, envpool, envpool-async, numba, torch, gymnax, mpi-native-R, mpi-native-run-R, mpi-envpool-R, "
    "mpi-envpool-run-R, mpi-numba-R, mpi-numba-run-R, mpi-torch-R, mpi-torch-run-R, mpi-jax-R, mpi-jax-run-R; of those "
    "that record minari, mpi-record-R"
)
# How a native env is made as slices of this program, see `forms`; and the words for it.
FORMS = {
    "vector_entry_point": "vector_entry_point",
    "envpool": "EnvPool slices",
    "numba": "Numba kernel",
    "torch": "torch kernel",
    "jax": "JAX slices (gymnax)",
}
SAMPLERS = ("torchrl-collector", "rllib-local", "rllib-remote", "sample-factory")  # They choose the actions.
_NEEDS = {"envpool": "envpool", "numba": "numba", "torch": "torch", "jax": "gymnax"}
_NAMES = {"vector_entry_point": "native"} | {form: form for form in list(FORMS)[1:]}


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
        What makes it, MODULE.FUNCTION in this package; empty where `recording` does it.
    num_ranks
        0: it is started without mpirun.
    options
        Of `mpi_rollout.connect`.
    form
        One of `FORMS`: the env in another form; empty for the env itself.
    needs
        A module that must be installed.
    division
        How it divides envs over the cores: "any" needs one for each, "equal" as many on each; empty if it does not.
    kind
        "base": bare loops; "loop": steps unmodified envs; "ahead": the same with actions that are known some steps
        ahead; "sampler": steps unmodified envs and chooses the actions beside them; "native": has the env in another
        form; "native-ahead": the same with actions that are known ahead; "record": steps unmodified envs and stores
        all of it.
    """

    name: str
    title: str
    maker: str
    num_ranks: int = 0
    options: tuple[tuple[str, str | int], ...] = ()
    form: str = ""
    needs: str = ""
    division: str = ""
    kind: str = "loop"

    @property
    def is_ours(self) -> bool:
        return self.num_ranks > 0

    @property
    def is_native(self) -> bool:
        """Whether it is another implementation of the same task."""
        return self.kind.startswith("native")


def systems_of(ranks: tuple[int, ...], num_cores: int) -> dict[str, System]:
    """Return all systems by name, in the order of tables; ours with these numbers of ranks that step envs."""
    processes = f"{num_cores} {'process' if num_cores == 1 else 'processes'}"
    systems = [
        System("bare", "bare loop, 1 core", "makers.bare", kind="base"),
        System(
            "bare-all",
            f"bare loops, {counted(num_cores, 'core')} at once",
            "makers.bare_on_all_cores",
            division="any",
            kind="base",
        ),
        *_our_systems(ranks),
        System("sync", "Gymnasium SyncVectorEnv", "makers.sync"),
        System("async", "Gymnasium AsyncVectorEnv", "makers.async_"),
        System("pool", f"process pool, {processes}", "makers.pool", division="any"),
        System("sb3-dummy", "SB3 DummyVecEnv", "makers.sb3_dummy", needs="stable_baselines3"),
        System("sb3-subproc", "SB3 SubprocVecEnv", "makers.sb3_subproc", needs="stable_baselines3"),
        *_peers(num_cores),
        *_native_systems(num_cores),
        *_our_native_systems(ranks),
        System("minari", "Minari DataCollector, recording", "makers.minari", needs="minari", kind="record"),
        *(System(f"mpi-record-{num}", f"{_title(num)}, recording", "", num, kind="record") for num in ranks),
    ]
    return {system.name: system for system in systems}


def _title(num_ranks: int) -> str:
    return f"mpi_rollout, {counted(num_ranks, 'rank')}"


def _our_systems(ranks: tuple[int, ...]) -> list[System]:
    most = ranks[-1]
    groups, ready = (("num_groups", 2), ("dedicated_root", True)), (("batch_size", 1), ("dedicated_root", True))
    return [
        *(System(f"mpi-{num}", _title(num), "makers.mpi", num) for num in ranks),
        *(
            System(f"mpi-fragments-{num}", f"{_title(num)}, fragments", "makers.mpi_fragments", num, kind="ahead")
            for num in ranks
        ),
        System("mpi-groups", f"{_title(most)} and a root, 2 groups", "makers.mpi_by_parts", most + 1, groups),
        System("mpi-ready", f"{_title(most)} and a root, first ready", "makers.mpi_by_parts", most + 1, ready),
        *(System(f"mpi-run-{num}", f"{_title(num)}, run", "", num, kind="sampler") for num in ranks),
    ]


def _our_native_systems(ranks: tuple[int, ...]) -> list[System]:
    """Return slices of native envs: step by step, and by `run`, whose ranks choose the actions."""
    systems = []
    for form, words in FORMS.items():
        name, needs = _NAMES[form], _NEEDS.get(form, "")
        for num in ranks if form == "vector_entry_point" else ranks[-1:]:
            title = f"{_title(num)}, {words}"
            systems += [
                System(f"mpi-{name}-{num}", title, "makers.mpi", num, form=form, needs=needs, kind="native"),
                System(f"mpi-{name}-run-{num}", f"{title}, run", "", num, form=form, needs=needs, kind="native-ahead"),
            ]
    return systems


def _native_systems(num_cores: int) -> list[System]:
    """Return systems that have the env in another form."""
    threads, cores = counted(num_cores, "thread"), counted(num_cores, "core")
    entry_point, scan = "vector_entry_point", "peers.of_gymnax.scan"
    return [
        System("native", "Gymnasium vector_entry_point", "native_makers.native", form=entry_point, kind="native"),
        *(
            System(name, f"EnvPool, {title}", f"native_makers.{maker}", form="envpool", needs="envpool", kind="native")
            for name, title, maker in (
                ("envpool-1", "sync, 1 thread", "envpool_1"),
                ("envpool-async-1", "async, 1 thread", "envpool_by_parts_1"),
                ("envpool", f"sync, {threads}", "envpool"),
                ("envpool-async", f"async, {threads}", "envpool_by_parts"),
            )
        ),
        *(
            System(
                form,
                f"{FORMS[form]}, {cores}",
                f"native_makers.{form}",
                form=form,
                needs=form,
                division="any",
                kind="native-ahead",
            )
            for form in ("numba", "torch")
        ),
        System("gymnax", "gymnax, jitted scan", scan, form="jax", needs="gymnax", kind="native-ahead"),
    ]


def _peers(num_cores: int) -> list[System]:
    """Return what people use instead; each is imported in a process of its own only."""
    workers, runners = counted(num_cores, "worker"), counted(num_cores, "remote runner")
    rows = (  # Name, package, function, title; of those whose workers have equally many envs more.
        ("puffer-serial", "pufferlib", "of_puffer.serial", "PufferLib Serial"),
        ("puffer-multi", "pufferlib", "of_puffer.multiprocessing", "PufferLib Multiprocessing", workers),
        ("tianshou-dummy", "tianshou", "of_tianshou.dummy", "Tianshou DummyVectorEnv"),
        ("tianshou-subproc", "tianshou", "of_tianshou.subproc", "Tianshou SubprocVectorEnv"),
        ("tianshou-shmem", "tianshou", "of_tianshou.shmem", "Tianshou ShmemVectorEnv"),
        ("torchrl-serial", "torchrl", "of_torchrl.serial", "TorchRL SerialEnv"),
        ("torchrl-parallel", "torchrl", "of_torchrl.parallel", "TorchRL ParallelEnv", workers),
        ("torchrl-collector", "torchrl", "of_torchrl.collector", "TorchRL MultiSyncCollector", workers),
        ("rllib-local", "ray", "of_rllib.local", "RLlib EnvRunner, local"),
        ("rllib-remote", "ray", "of_rllib.remote", "RLlib EnvRunners", runners),
        ("sample-factory", "sample_factory", "of_sample_factory.sampler", "Sample Factory's sampler", workers),
    )
    return [
        System(
            name,
            ", ".join(title),
            f"peers.{function}",
            needs=package,
            division="equal" if len(title) > 1 else "",
            kind="sampler" if name in SAMPLERS else "loop",
        )
        for name, package, function, *title in rows
    ]
