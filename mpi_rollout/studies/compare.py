"""Which vector env is fastest for a user's env on this machine.

A turn of a system is a process or a job of its own, which runs this module: it makes the envs, warms up, and steps them
for a while.  Between two turns of a system all others have theirs, so that a machine that gets slower does so for all.
Rows that only reset are no env steps.

A system is a context manager that makes the envs of a `Setup`, and gives a function that steps them for some seconds
and returns env steps per second, as those of the limit of a run do.  All ranks of a job call it; a rank that only
serves the root gives None.  `benchmarks/` has more systems, which take the same turns; another Python may run them,
with an old Gymnasium and neither mpi4py nor h5py.
"""

import importlib.util
import json
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import cycle
from pathlib import Path
from pkgutil import resolve_name
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

from gymnasium import Space, vector
from gymnasium.vector.utils import batch_space

from mpi_rollout.config import RolloutConfig
from mpi_rollout.core.option_values import check_seconds
from mpi_rollout.core.partition import Partition
from mpi_rollout.errors import Option, RolloutError, UsageError
from mpi_rollout.process.clock import utc_now
from mpi_rollout.process.console import say, show
from mpi_rollout.process.host import num_usable_cores
from mpi_rollout.studies.jobs import JobFailed, JobOptions, Options, check_scipy, in_order, run_job, usable_launcher
from mpi_rollout.studies.statistics import median_interval, ratio
from mpi_rollout.studies.study_file import machine_facts, place_and_time
from mpi_rollout.text import aligned, counted, pip_install

if TYPE_CHECKING:
    from mpi_rollout.envs.env_maker import EnvMaker

Rate = Callable[[float], float]  # Steps envs for some seconds, and returns env steps per second.

OTHERS = "python benchmarks/compare.py, in a clone"
INSTALLS = {"stable_baselines3": "[sb3]", "envpool": "[envpool]"}
NOTES = (
    "medians and intervals over turns, each of a process of its own; `or` stands between systems whose intervals meet",
    "EnvPool: another implementation of the env",
)
SEED = 0  # The seed of the reset: env i has SEED + i.
NUM_ACTIONS = 64  # Steps for which actions are drawn; they are used in turn.
WARM_UP_SHARE = 0.1  # A share of the window.
START_S = 60.0  # The time that all ranks have to start.


@dataclass(frozen=True)
class Setup:
    """The envs that a system steps: `env` has `--env` and its like by field; a job has ranks, and this process one."""

    env: Options
    num_envs: int
    num_cores: int
    num_ranks: int = 0
    rank: int = 0

    def maker(self, **form: Any) -> "EnvMaker":
        """Return what makes an env, or another `form` of it.  Later resets of an env get no seed, as a trainer's."""
        from mpi_rollout.envs.env_maker import maker_of

        form = form or {"vectorization_mode": "sync", "episode_seeds": False}
        return maker_of(RolloutConfig(**{**self.env, "num_envs": self.num_envs, **form}))

    @property
    def mine(self) -> range:
        """The envs of this process, where each steps its own."""
        return Partition(self.num_envs, max(self.num_ranks, 1)).envs_of(self.rank)


@dataclass(frozen=True)
class System:
    """One of the systems that are compared.

    `make` is MODULE:FUNCTION.  With `num_ranks` 0 it is started without mpirun.  It needs `least` envs at least, and
    the package `needs`.  The kind is "base" (bare loops), "step" (steps the env itself) or "native" (another
    implementation of the env).
    """

    name: str
    title: str
    make: str
    num_ranks: int = 0
    least: int = 1
    needs: str = ""
    kind: str = "step"

    def reason_to_skip(self, setup: Setup) -> str:
        """Say why it cannot be measured; empty if it can."""
        if self.needs in INSTALLS and importlib.util.find_spec(self.needs) is None:
            return f"{self.needs} is not installed; {pip_install(INSTALLS[self.needs])}"
        if setup.num_envs < self.least:
            return f"{counted(setup.num_envs, 'env')} for {self.least} processes"
        if self.needs == "envpool" and envpool_id(setup) not in resolve_name("envpool:list_all_envs")():
            return "EnvPool does not have this env"
        return ""


def systems_of(num_ranks: int, num_cores: int) -> list[System]:
    """Return all systems, in the order of the table; this program's have `num_ranks` ranks."""
    cores, ours, at = counted(num_cores, "core"), f"mpi_rollout, {counted(num_ranks, 'rank')}", f"{__name__}:"
    return [
        System("bare", "bare loop, 1 core", f"{at}bare", kind="base"),
        System("bare-all", f"bare loops, {cores} at once", f"{at}bare", num_cores, num_cores, kind="base"),
        System("mpi", ours, f"{at}mpi", num_ranks, num_ranks),
        System("sync", "Gymnasium SyncVectorEnv", f"{at}sync"),
        System("async", "Gymnasium AsyncVectorEnv", f"{at}async_"),
        System("sb3-dummy", "SB3 DummyVecEnv", f"{at}sb3_dummy", needs="stable_baselines3"),
        System("sb3-subproc", "SB3 SubprocVecEnv", f"{at}sb3_subproc", needs="stable_baselines3"),
        System("envpool", f"EnvPool, {cores}", f"{at}envpool", needs="envpool", kind="native"),
    ]


NAMES = ", ".join(system.name for system in systems_of(1, 1))


def chosen(text: str, systems: list[System]) -> list[System]:
    """Return the systems that are named, and the bare loop, which they are compared with."""
    names = [part.strip() for part in text.split(",") if part.strip()]
    if unknown := [name for name in names if name not in {system.name for system in systems}]:
        raise UsageError(f"--systems: there is no {', '.join(unknown)}; there are {NAMES}; others: {OTHERS}")
    return [system for system in systems if not names or system.name in (*names, "bare")]


def drawn_actions(batched_space: Space) -> list[Any]:
    """Draw random actions of all envs for some steps: the same for all systems."""
    batched_space.seed(SEED)
    return [batched_space.sample() for _ in range(NUM_ACTIONS)]


def actions_of(setup: Setup, num_envs: int) -> list[Any]:
    """Draw them for some of the envs, none of which is made yet."""
    with closing(setup.maker()(0)) as env:
        return drawn_actions(batch_space(env.action_space, num_envs))


@contextmanager
def bare(setup: Setup, **form: Any) -> Iterator[Rate]:
    """Make a loop over all envs; on several ranks, a loop over each one's share."""
    from mpi_rollout.envs.bare import make_bare

    yield make_bare(setup.maker(**form), setup.mine, SEED, actions_of(setup, len(setup.mine)))


def of_vector_env(envs: vector.VectorEnv) -> Rate:
    """Step a Gymnasium vector env."""
    from mpi_rollout.envs.bare import bare_vector_loop

    envs.reset(seed=SEED)
    return bare_vector_loop(envs, drawn_actions(envs.action_space))


@contextmanager
def mpi(setup: Setup) -> Iterator[Rate | None]:
    """Make this program's envs, as a trainer has them."""
    import mpi_rollout

    make, wrappers = setup.maker(), setup.env.get("wrappers", "")
    assert not isinstance(make.env, tuple), "one description is of all envs"
    with mpi_rollout.connect(make.env, setup.num_envs, env_kwargs=make.kwargs, wrappers=wrappers) as envs:
        yield None if envs is None else of_vector_env(envs)


@contextmanager
def _of_gymnasium(setup: Setup, kind: str, **options: str) -> Iterator[Rate]:
    """Make Gymnasium's loop, or its process for each env with its shared memory."""
    with closing(getattr(vector, kind)(setup.maker().functions(range(setup.num_envs)), **options)) as envs:
        yield of_vector_env(envs)


@contextmanager
def _of_sb3(setup: Setup, kind: str, **options: str) -> Iterator[Rate]:
    """Make SB3's loop, or its process for each env; the step that ends an episode resets: all rows are env steps."""
    from stable_baselines3.common import vec_env

    actions = cycle(actions_of(setup, setup.num_envs))

    def measure(seconds: float) -> float:
        start, num_steps, elapsed = perf_counter(), 0, 0.0
        while elapsed < seconds:
            envs.step(next(actions))
            num_steps, elapsed = num_steps + setup.num_envs, perf_counter() - start
        return num_steps / elapsed

    with closing(getattr(vec_env, kind)(setup.maker().functions(range(setup.num_envs)), **options)) as envs:
        envs.seed(SEED)
        envs.reset()
        yield measure


sync = partial(_of_gymnasium, kind="SyncVectorEnv")
async_ = partial(_of_gymnasium, kind="AsyncVectorEnv", context="fork")
sb3_dummy = partial(_of_sb3, kind="DummyVecEnv")
sb3_subproc = partial(_of_sb3, kind="SubprocVecEnv", start_method="fork")


def envpool_id(setup: Setup) -> str:
    """Return an env id as EnvPool knows it: Atari's without namespace, others as they are; "" for other envs."""
    is_plain = setup.env["env"] and not setup.env.get("env_kwargs") and not setup.env.get("wrappers")
    return re.sub("^(ale_py:)?ALE/", "", setup.env["env"]) if is_plain else ""


@contextmanager
def envpool(setup: Setup, num_threads: int = 0) -> Iterator[Rate]:
    """Make EnvPool with a thread for each core, in lockstep."""
    kwargs = {"num_threads": num_threads or setup.num_cores}
    with bare(setup, env=envpool_id(setup), vectorization_mode="envpool", env_kwargs=kwargs) as measure:
        yield measure


class Sample(NamedTuple):
    """One turn of a system; an `error` says why there is none."""

    system: str
    repeat: int
    env_steps_per_s: float
    error: str = ""


def measure(
    setup: Setup, systems: Sequence[System], jobs: JobOptions, window_s: float, pythons: Mapping[str, str]
) -> Iterator[Sample]:
    """Yield the turns of all systems, in another random order in each repeat; one that fails has no more.

    `pythons` are those of systems that another Python has, by the package that they need.
    """
    launcher = usable_launcher(jobs.launcher) if any(system.num_ranks for system in systems) else ""
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # Systems share the cores; pools of threads would use them all.
    failed = set()
    with TemporaryDirectory() as folder:
        for repeat, system in in_order(systems, jobs):
            if system.name in failed:
                continue
            given = json.dumps(asdict(replace(setup, num_ranks=system.num_ranks)))
            ranks = [*shlex.split(launcher), "-n", str(system.num_ranks)] if system.num_ranks else []
            module = [*(["-m", "mpi4py"] if ranks else []), "-m", "mpi_rollout.studies.compare"]  # One ends all.
            command = [*ranks, pythons.get(system.needs, sys.executable), *module, system.make, str(window_s), given]
            try:
                printed = run_job(command, Path(folder), jobs.timeout_s)
                yield Sample(system.name, repeat, printed["env_steps_per_s"])
            except JobFailed as error:
                failed.add(system.name)
                say(f"mpi_rollout: {system.title} failed: {str(error).splitlines()[0]}\n")
                yield Sample(system.name, repeat, 0.0, str(error))


def compare(
    env: Options, num_envs: int, num_ranks: int | None, names: str, window_s: float, as_json: bool, jobs: JobOptions
) -> int:
    """Measure the systems that are named and apply; print the table, or all samples as one line of JSON.

    RolloutError if some systems failed, which was no reason to stop.
    """
    num_cores = num_usable_cores()
    num_ranks = num_cores if num_ranks is None else num_ranks
    if num_ranks < 1:
        raise UsageError(f"--ranks must be at least 1, got {num_ranks}")
    check_seconds(Option("window_s"), window_s)
    check_scipy()
    systems, setup = chosen(names, systems_of(num_ranks, num_cores)), Setup(env, num_envs, num_cores)
    setup.maker()(0).close()  # What is wrong of the env is said once, and at once.
    reasons = {system: why for system in systems if (why := system.reason_to_skip(setup))}
    applying = [system for system in systems if system not in reasons]
    skipped = [f"skipped: {system.title}: {why}" for system, why in reasons.items()]
    if jobs.dry_run:
        show([*(f"{system.name}: {system.title}" for system in applying), *skipped])
        return 0
    started, samples = utc_now(), list(measure(setup, applying, jobs, window_s, {}))
    facts, host = machine_facts(), os.uname().nodename
    if as_json:
        rows = [sample._asdict() for sample in samples]
        show([json.dumps({"host": host, "started": started, **facts, "env": env, "samples": rows})])
    else:
        point = f"{env['env'] or env['env_factory']}, {counted(num_envs, 'env')}"
        head = f"{point}: {place_and_time(host, facts, [], started)}", f"with {facts['versions']}", ""
        show([*head, *lines(applying, samples), "", *NOTES, *skipped])
    if failed := [sample.system for sample in samples if sample.error]:
        raise RolloutError(f"{', '.join(failed)} failed; the others were measured")
    return 0


def lines(systems: Sequence[System], samples: Sequence[Sample]) -> list[str]:
    """Return the table, and who is fastest among those that step the env itself, and among all."""
    taken: dict[str, list[float]] = {}
    for sample in samples:
        if not sample.error:
            taken.setdefault(sample.system, []).append(sample.env_steps_per_s)
    rates = {name: median_interval(some) for name, some in taken.items()}
    table = [["", "env steps/s", "interval", "over the bare loop"]]
    for system in systems:
        if system.name in rates:
            rate = rates[system.name]
            over = f"{ratio(rate, rates['bare']).median:.3g}" if "bare" in rates else "-"
            table.append([system.title, f"{rate.median:,.0f}", f"{rate.low:,.0f} to {rate.high:,.0f}", over])
    text, named = [*aligned(table, 1), ""], list[str]()
    for words, kinds in (("fastest", ("step",)), ("fastest of all", ("step", "native"))):
        ranked = [system for system in systems if system.name in rates and system.kind in kinds]
        ranked.sort(key=lambda system: -rates[system.name].median)
        # The highest median comes first, then the systems whose intervals reach its own.
        titles = [each.title for each in ranked if rates[each.name].high >= rates[ranked[0].name].low]
        if titles and titles != named:  # Else no native env is faster, or none was measured.
            text.append(f"{words}: {' or '.join(titles)}")
        named = titles
    return text


def main(make: str, window_s: str, given: str) -> None:
    """Make the envs of a setup, take the turn, close them, and print it."""
    setup, comm = Setup(**json.loads(given)), None
    if setup.num_ranks:
        from mpi_rollout.exchange import world

        world.start_mpi_on_all_ranks(START_S)
        comm = world.comm_world()
        setup = replace(setup, rank=comm.rank)
    rate = None
    with resolve_name(make)(setup) as measure_for:
        if measure_for is not None:
            measure_for(WARM_UP_SHARE * float(window_s))
            rate = measure_for(float(window_s))
    rates = [rate] if comm is None else comm.gather(rate)
    if rates is not None:
        print(json.dumps({"complete": True, "env_steps_per_s": sum(filter(None, rates))}))


if __name__ == "__main__":
    main(*sys.argv[1:])
