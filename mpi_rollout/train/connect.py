"""`connect`: the envs of all ranks for a trainer on the root.

All ranks run the trainer's script.  In `with connect(...) as envs` the root gets a vector env; every other rank
serves it inside, comes out when the root leaves, and gets None.  A second connection that the root opens meanwhile is
served by the same ranks.  In one process `envs = connect(...)` is enough.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode

from mpi_rollout.config import ACTION_MODES, VECTORIZATION_MODES, WAITS
from mpi_rollout.core.clock import MAX_TIMEOUT_S
from mpi_rollout.core.partition import Division
from mpi_rollout.envs.env_maker import EnvMaker
from mpi_rollout.envs.faults import OnFault
from mpi_rollout.errors import UsageError
from mpi_rollout.exchange.infos import Infos
from mpi_rollout.process.launcher import end_with_launcher
from mpi_rollout.ranks.set_up import Plan, check_batch_size
from mpi_rollout.train.connection import Connection, is_alone
from mpi_rollout.train.vector_env import MPIVectorEnv


def connect(
    env: str | Callable[..., gymnasium.Env] | None = None,
    num_envs: int | None = None,
    *,
    env_fns: Sequence[Callable[..., gymnasium.Env]] | None = None,
    env_kwargs: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
    autoreset_mode: str | AutoresetMode = AutoresetMode.NEXT_STEP,
    vectorization_mode: str = "sync",
    infos: Infos = "all",
    actions: str = "pass",
    copy: bool = True,
    num_groups: int = 1,
    batch_size: int | None = None,
    dedicated_root: bool = False,
    max_env_restarts: int = 0,
    env_timeout_s: float | None = None,
    check_finite: bool = False,
    check_bounds: bool = False,
    strict_dtypes: bool = False,
    wait: str = "auto",
    comm: Any = None,
    timeout_s: float = 300.0,
) -> Connection | MPIVectorEnv:
    """Connect all ranks' envs to a trainer.  **Collective**: to be entered on all ranks, with the same arguments.

    Parameters
    ----------
    env
        An env id, or a callable that returns one env.  A callable that has a parameter `env_index` is given the index
        of the env, from 0 to num_envs - 1.
    num_envs
        Over all ranks.
    env_fns
        Instead of `env`: a list of callables, one for each env, as Gymnasium's SyncVectorEnv and Stable-Baselines3's
        DummyVecEnv take it.  Each rank calls those of its own envs only.
    env_kwargs
        Keyword arguments for every env, or a list with those of each env.
    autoreset_mode
        "next_step", "same_step" or "disabled", as in Gymnasium.
    vectorization_mode
        "sync" or "vector_entry_point".
    infos
        "all" gives what Gymnasium's SyncVectorEnv gives, which costs nothing where envs say nothing; a mapping such as
        {"lives": int} gives these alone, cheaply; "none" none.  See `mpi_rollout.exchange.infos`.
    actions
        What to do with actions outside of their space.  "pass": floats reach the env as they are, as in Gymnasium's
        SyncVectorEnv, but in the dtype of their space; integers that are outside are refused.  "clip": they are set
        to the nearest bound; NaN is refused.  "check": they are refused; a float that is outside by rounding alone is
        set to the bound.
    copy
        False: observations are views that live until the call after the next; see `mpi_rollout.train.vector_env`.
    num_groups
        Double buffering with 2: `recv` returns one half of the envs while the ranks step the other.
    batch_size
        First ready, first served: `recv` waits for this many ranks only.
    dedicated_root
        The root steps no envs: where it is busy with a policy, or beside a GPU.
    max_env_restarts
        How often each env may be made anew when it fails.  0: its failure is raised on the root as a RankError.  Where
        it is made anew, its episode is truncated, with its last observation, reward 0 and, with infos="all", the
        failure as its info "env_error"; all failures are told on stderr.  The new env has no values of `set_attr`, and
        a generator that nobody has seeded.
    env_timeout_s
        How long a step or reset may take; more is a failure.
    check_finite
        NaN and infinity in observations and rewards are failures.
    check_bounds
        Observations outside of their space are failures, rounding errors aside.
    strict_dtypes
        Refuse observations of another dtype than their space's.  By default they are cast, as by SyncVectorEnv, if no
        integer loses its value, and each rank warns of the first one.
    wait
        How a rank waits for messages: "spin" (fastest, uses the core) or "sleep"; "auto" spins, and sleeps where a host
        has four ranks or more for each core and while other programs share the cores.
    comm
        The ranks to connect, COMM_WORLD by default; the root is its rank 0.
    timeout_s
        How long ranks wait for each other to call `connect`.

    Returns
    -------
    With several ranks a context manager.  On the root it gives a `MPIVectorEnv`; elsewhere None, when all is over.
    With one rank the `MPIVectorEnv` itself, which may be used in a `with` statement or without: it is closed at the
    end of the program.

    Raises
    ------
    RolloutError
        On the root: an argument cannot work, or ranks do not agree.  Other ranks leave with its exit code.  With
        several ranks it is raised on entering the `with` statement.
    """
    end_with_launcher()
    num_envs, num_groups, batch_size, max_env_restarts = map(
        _plain, (num_envs, num_groups, batch_size, max_env_restarts)
    )
    on_fault = OnFault(max_env_restarts, check_finite, env_timeout_s, strict_dtypes, check_bounds)
    request = Request(
        env, num_envs, env_fns, {} if env_kwargs is None else env_kwargs, vectorization_mode, autoreset_mode, infos,
        actions, copy, num_groups, batch_size, dedicated_root, on_fault, wait,
    )  # fmt: skip
    connection = Connection(request, comm, timeout_s)
    return connection.__enter__() if is_alone(comm, timeout_s) else connection


def _plain(value: Any) -> Any:
    """NumPy's integers as Python's, so that they are the same in what ranks compare."""
    return int(value) if isinstance(value, np.integer) else value


@dataclass(frozen=True)
class Request:
    """The arguments of `connect` that must be the same on all ranks."""

    env: str | Callable[..., gymnasium.Env] | None
    num_envs: int | None
    env_fns: Sequence[Callable[..., gymnasium.Env]] | None
    env_kwargs: Mapping[str, Any] | Sequence[Mapping[str, Any]]
    vectorization_mode: str
    autoreset_mode: str | AutoresetMode
    infos: Infos
    actions: str
    copy: bool
    num_groups: int
    batch_size: int | None
    dedicated_root: bool
    on_fault: OnFault
    wait: str

    def plan(self, num_ranks: int) -> Plan:
        """Make a plan for some ranks.

        Raises
        ------
        UsageError
            An argument cannot work.
        """
        chosen = (
            ("vectorization_mode", VECTORIZATION_MODES, self.vectorization_mode),
            ("wait", WAITS, self.wait),
            ("actions", ACTION_MODES, self.actions),
        )
        for name, allowed, value in chosen:
            if value not in allowed:
                raise UsageError(f"{name} must be one of {', '.join(allowed)}, got {value!r}")
        if self.batch_size is not None and self.num_groups > 1:
            raise UsageError(f"batch_size makes a group of each rank, got num_groups={self.num_groups} too; use one")
        make, num_envs = self.make, self.count
        for name, value in (("num_envs", num_envs), ("num_groups", self.num_groups)):
            if type(value) is not int or value < 1:
                raise UsageError(f"{name} must be a whole number of at least 1, got {value!r}")
        make.check(num_envs)
        is_first_ready = self.batch_size is not None
        division = Division(num_envs, num_ranks, self.dedicated_root, self.num_groups, is_first_ready)
        check_batch_size(division, self.batch_size if is_first_ready else 1)
        return Plan(make, division, None, self.mode, self.infos, self._checked_on_fault(), wait=self.wait)

    @property
    def make(self) -> EnvMaker:
        """What makes the envs.

        Raises
        ------
        UsageError
            It is given twice, or not at all.
        """
        if (self.env is None) == (self.env_fns is None):
            raise UsageError(f"give one of env and env_fns, got {'none' if self.env is None else 'both'}")
        if not isinstance(self.env_fns, list | tuple | None):
            raise UsageError(f"env_fns must be a list of callables, one for each env, got {self.env_fns!r}")
        env = self.env if self.env_fns is None else tuple(self.env_fns)
        kwargs = tuple(self.env_kwargs) if isinstance(self.env_kwargs, list | tuple) else self.env_kwargs
        return EnvMaker(env, kwargs, self.vectorization_mode)

    @property
    def count(self) -> Any:
        """The number of envs: as it was given, or of `env_fns`."""
        return self.num_envs if self.env_fns is None or self.num_envs is not None else len(self.env_fns)

    def _checked_on_fault(self) -> OnFault:
        most, timeout_s = self.on_fault.max_restarts, self.on_fault.timeout_s
        if not isinstance(most, int) or most < 0:
            raise UsageError(f"max_env_restarts must be a whole number of at least 0, got {most!r}")
        if timeout_s is not None and not (isinstance(timeout_s, int | float) and 0 < timeout_s <= MAX_TIMEOUT_S):
            raise UsageError(f"env_timeout_s must be more than 0 and at most {MAX_TIMEOUT_S:g}, got {timeout_s!r}")
        return self.on_fault

    @property
    def mode(self) -> AutoresetMode:
        """The autoreset mode, however it was written: next_step, NextStep or Gymnasium's own."""
        modes = {mode.name.replace("_", ""): mode for mode in AutoresetMode}
        text = self.autoreset_mode.value if isinstance(self.autoreset_mode, AutoresetMode) else self.autoreset_mode
        found = modes.get(str(text).upper().replace("_", ""))
        if found is None:
            allowed = ", ".join(mode.name.lower() for mode in AutoresetMode)
            raise UsageError(f"autoreset_mode must be one of {allowed}, got {self.autoreset_mode!r}")
        return found

    def fingerprint(self) -> dict[str, str]:
        """How ranks tell that they mean the same: each argument as text, a callable by its name."""
        values = {each.name: getattr(self, each.name) for each in fields(self) if each.name != "on_fault"}
        values |= {"num_envs": self.count, "env" if self.env_fns is None else "env_fns": self.make.name}
        values |= {"max_env_restarts": self.on_fault.max_restarts, "check_finite": self.on_fault.check_finite}
        values |= {"check_bounds": self.on_fault.check_bounds}
        values |= {"env_timeout_s": self.on_fault.timeout_s, "strict_dtypes": self.on_fault.strict_dtypes}
        return {f"the argument {name} of connect": repr(value) for name, value in values.items()}
