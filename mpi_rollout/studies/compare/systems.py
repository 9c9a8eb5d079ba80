"""What is compared: one list.  What a system needs beyond this program is imported in its function only.

A function is a context manager that makes the envs of a `Setup` and gives their `Stepper`.  All ranks of a job call
it; a rank that only serves the root gets None.
"""

import importlib.util
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import cycle
from typing import TYPE_CHECKING, Any

from mpi_rollout.errors import UsageError
from mpi_rollout.studies.compare.turn import SEED, Stepper, count_rows, drawn_actions, of_loop, of_vector_env
from mpi_rollout.text import counted, pip_install

if TYPE_CHECKING:
    from gymnasium import Env

    from mpi_rollout.envs.env_maker import EnvMaker

OTHERS = "python benchmarks/compare.py, in a clone"
INSTALLS = {"stable_baselines3": "[sb3]", "envpool": "[envpool]"}


@dataclass(frozen=True)
class Setup:
    """What a system is to be made of: `env` has `--env` and its like by field; `rank` is of this process in its job."""

    env: dict[str, Any]
    num_envs: int
    num_cores: int
    rank: int = 0
    size: int = 1

    @cached_property
    def make(self) -> "EnvMaker":
        """What makes the env with a given index."""
        from mpi_rollout.config import RolloutConfig
        from mpi_rollout.envs.env_maker import maker_of

        return maker_of(RolloutConfig(**self.env, num_envs=self.num_envs, vectorization_mode="sync"))

    @property
    def functions(self) -> "Sequence[Callable[[], Env]]":
        """A callable for each env."""
        return self.make.functions(range(self.num_envs))

    @property
    def mine(self) -> range:
        """The envs of this process, where each steps its own."""
        from mpi_rollout.core.partition import Partition

        return Partition(self.num_envs, self.size).envs_of(self.rank)

    @property
    def actions(self) -> Iterator[Any]:
        """Actions of all envs, in turn for ever."""
        from gymnasium.vector.utils import batch_space

        with closing(self.make(0)) as env:
            return cycle(drawn_actions(batch_space(env.action_space, self.num_envs)))


@dataclass(frozen=True)
class System:
    """One of the systems that are compared.

    `maker` is MODULE:FUNCTION, see the top of this module.  With `num_ranks` 0 it is started without mpirun.  It needs
    `least` envs at least, and the package `needs`.  The kind is "base" (bare loops), "step" (steps the env itself) or
    "native" (another implementation of the env).
    """

    name: str
    title: str
    maker: str
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
        if self.needs == "envpool":
            import envpool

            return "" if envpool_id(setup) in envpool.list_all_envs() else "EnvPool does not have this env"
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
        System("pool", f"process pool, {cores}", f"{at}pool", least=num_cores),
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


@contextmanager
def bare(setup: Setup) -> Iterator[Stepper]:
    """Make a loop over all envs; on several ranks, a loop over each one's share."""
    from gymnasium.vector.utils import batch_space, iterate

    envs = [setup.make(index) for index in setup.mine]
    batched = batch_space(envs[0].action_space, len(envs))
    yield of_loop(envs, [list(iterate(batched, row)) for row in drawn_actions(batched)], setup.mine.start)


@contextmanager
def mpi(setup: Setup) -> Iterator[Stepper | None]:
    """Make this program's envs, as a trainer has them."""
    import mpi_rollout

    env = setup.make.env
    assert not isinstance(env, tuple), "one description is of all envs"
    wrappers = setup.env.get("wrappers", "")
    with mpi_rollout.connect(env, setup.num_envs, env_kwargs=setup.make.kwargs, wrappers=wrappers) as envs:
        yield None if envs is None else of_vector_env(envs)


@contextmanager
def _of_gymnasium(setup: Setup, kind: str, **options: str) -> Iterator[Stepper]:
    """Make Gymnasium's loop, or its process for each env with its shared memory."""
    from gymnasium import vector

    with closing(getattr(vector, kind)(setup.functions, **options)) as envs:
        yield of_vector_env(envs)


sync = partial(_of_gymnasium, kind="SyncVectorEnv")
async_ = partial(_of_gymnasium, kind="AsyncVectorEnv", context="fork")


@contextmanager
def pool(setup: Setup) -> Iterator[Stepper]:
    """Make several envs in each of as many processes as there are cores."""
    from mpi_rollout.studies.compare.pool import process_pool

    actions = setup.actions
    with process_pool(setup.functions, setup.num_cores, SEED) as step:
        yield Stepper(lambda: step(None), lambda: step(next(actions))[2:4], count_rows)


@contextmanager
def _of_sb3(setup: Setup, kind: str, **options: str) -> Iterator[Stepper]:
    """Make SB3's loop, or its process for each env; the step that ends an episode resets: all rows are env steps."""
    from stable_baselines3.common import vec_env

    with closing(getattr(vec_env, kind)(setup.functions, **options)) as envs:
        actions = setup.actions
        envs.seed(SEED)
        yield Stepper(envs.reset, lambda: len(envs.step(next(actions))[1]))


sb3_dummy = partial(_of_sb3, kind="DummyVecEnv")
sb3_subproc = partial(_of_sb3, kind="SubprocVecEnv", start_method="fork")


def envpool_id(setup: Setup) -> str:
    """Return an env id as EnvPool knows it: Atari's without namespace, others as they are; "" for other envs."""
    is_plain = setup.env["env"] and not setup.env.get("env_kwargs") and not setup.env.get("wrappers")
    return re.sub("^(ale_py:)?ALE/", "", setup.env["env"]) if is_plain else ""


@contextmanager
def envpool(setup: Setup, num_threads: int = 0) -> Iterator[Stepper]:
    """Make EnvPool with a thread for each core, in lockstep; it gets its seed when it is made."""
    import envpool
    from gymnasium.vector.utils import batch_space

    sizes = {"num_envs": setup.num_envs, "num_threads": num_threads or setup.num_cores}
    envs = envpool.make(envpool_id(setup), env_type="gymnasium", seed=SEED, **sizes)
    actions = cycle(drawn_actions(batch_space(envs.action_space, setup.num_envs)))
    with closing(envs):
        yield Stepper(envs.reset, lambda: envs.step(next(actions))[2:4], count_rows)
