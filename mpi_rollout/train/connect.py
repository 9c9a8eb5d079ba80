"""`connect`: the envs of all ranks for a trainer on the root.

All ranks run the trainer's script.  In `with connect(...) as envs` the root gets a vector env; every other rank
serves it inside, comes out when the root leaves, and gets None.  A second connection that the root opens meanwhile is
served by the same ranks.  In one process `envs = connect(...)` is enough.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from inspect import signature
from typing import TYPE_CHECKING, Never, TypeVar

import numpy as np
from gymnasium.vector import AutoresetMode

from mpi_rollout.config import (
    ACTION_MODES,
    COMPRESSIONS,
    POLICY_MODES,
    VECTORIZATION_MODES,
    WAITS,
    RolloutConfig,
    vectorization_of,
)
from mpi_rollout.core.clock import MAX_TIMEOUT_S
from mpi_rollout.core.partition import Division
from mpi_rollout.core.policy_kinds import MADE, is_maker
from mpi_rollout.envs.env_maker import Env, EnvFunction, EnvMaker, Kwargs, name_of
from mpi_rollout.envs.faults import OnFault
from mpi_rollout.errors import RolloutError, UsageError
from mpi_rollout.exchange.infos import Infos
from mpi_rollout.policies.blocks import PolicyOptions
from mpi_rollout.policies.made import make_model
from mpi_rollout.policies.model import PolicySource
from mpi_rollout.policies.sources import check_file_options, read_source
from mpi_rollout.process.launcher import end_with_launcher
from mpi_rollout.ranks.driver import Driver
from mpi_rollout.ranks.policy_on_ranks import PolicyOnRanks
from mpi_rollout.ranks.set_up import Plan, check_batch_size
from mpi_rollout.train.connection import Connection, is_alone
from mpi_rollout.train.vector_env import MPIVectorEnv
from mpi_rollout.words import argument_words

if TYPE_CHECKING:
    from mpi4py import MPI

Number = TypeVar("Number")
PolicyArgument = str | Callable[[], object] | None  # None is no policy.


def connect(
    env: Env | list[EnvFunction] | tuple[EnvFunction, ...] | None = None,
    num_envs: int | None = None,
    *,
    env_fns: Sequence[EnvFunction] | None = None,
    env_kwargs: Kwargs | list[Kwargs] | tuple[Kwargs, ...] | None = None,
    autoreset_mode: str | AutoresetMode = AutoresetMode.NEXT_STEP,
    vectorization_mode: str = "auto",
    infos: Infos = "all",
    actions: str = "pass",
    copy: bool = True,
    num_groups: int = 1,
    batch_size: int | None = None,
    dedicated_root: bool = False,
    policy: PolicyArgument = None,
    policy_mode: str = "deterministic",
    policy_block: int = 64,
    trust_policy: bool = False,
    record: str | os.PathLike[str] | None = None,
    record_compression: str = "none",
    max_env_restarts: int = 0,
    env_timeout_s: float | None = None,
    check_finite: bool = False,
    check_bounds: bool = False,
    strict_dtypes: bool = False,
    wait: str = "auto",
    comm: "MPI.Intracomm | None" = None,
    timeout_s: float = 300.0,
    **unknown: Never,
) -> Connection | MPIVectorEnv:
    """Connect all ranks' envs to a trainer.  **Collective**: all ranks call it, with the same arguments.

    Parameters
    ----------
    env, num_envs
        An env id or its spec, or a callable that returns one env; how many envs all ranks have together.  A callable
        with a parameter `env_index` is given the index of the env, from 0 to num_envs - 1.
    env_fns
        Instead of `env`: a list of callables, one for each env, as Gymnasium's SyncVectorEnv and Stable-Baselines3's
        DummyVecEnv take it.  Each rank calls those of its own envs only.  `env` may be such a list too.
    env_kwargs
        Keyword arguments for every env, or a list with those of each env.
    autoreset_mode, vectorization_mode
        "next_step", "same_step" or "disabled", as in Gymnasium; "sync", "vector_entry_point", "envpool" or "native", as
        the option of the command line; "auto" is "vector_entry_point" for mpi_rollout/... envs, else "sync".
    infos
        "all": what Gymnasium's SyncVectorEnv gives; it costs nothing where envs say nothing.  A mapping such as
        {"lives": int, "position": [float, 3]}: these alone, cheaply.  "none": no infos.
    actions
        What to do with actions outside of their space.  "pass": floats reach the env as they are, as in Gymnasium's
        SyncVectorEnv, but in the dtype of their space; integers outside are refused.  "clip": they are set to the
        nearest bound; NaN is refused.  "check": they are refused; a float outside by rounding alone is set to the
        bound.
    copy
        False: observations are views that live until the call after the next; copy what you keep.
    num_groups
        Double buffering with 2: `recv` returns one half of the envs while the ranks step the other.
    batch_size
        First ready, first served: `recv` waits for this many ranks only.
    dedicated_root
        The root steps no envs: where it is busy with a policy, or beside a GPU.
    policy, policy_mode, policy_block, trust_policy
        What chooses the actions of `collect` on the ranks: "mine:make_policy", a function `make_policy` itself, or a
        file, with the options of the command line of these names; see `mpi_rollout.policies.model.Model`.
    record
        A new file, which gets what the envs show, the infos that `infos` names, and what the trainer does, in the
        format of runs; rank 0 writes it.  It is called FILE.part until the envs are closed, or the program ends.  See
        docs/how-to/training.md.
    record_compression
        As `--compression`: "none", "gzip", "lz4", "zstd" or "blosc".
    max_env_restarts
        How often each env may be restarted when it fails.  With 0 a failure is raised on the root as a RankError.  An
        env that is restarted ends its episode: truncated, with its last observation, reward 0 and, with infos="all",
        the failure as its info "env_error".  All failures are reported on stderr.  The new env has no values of
        `set_attr`, and a generator that nobody has seeded.
    env_timeout_s
        How long a step or reset may take; more is a failure.
    check_finite, check_bounds
        NaN and infinity in observations and rewards are failures; observations outside of their space are failures,
        rounding errors aside.
    strict_dtypes
        Refuse observations of another dtype than their space's.  By default they are cast, as by SyncVectorEnv, if no
        integer loses its value, and each rank warns of the first one.
    wait
        How a rank waits for messages: "spin" (fastest, uses the core) or "sleep"; "auto" spins, and sleeps where a host
        has four ranks or more for each core and while other programs share the cores.
    comm, timeout_s
        The ranks to connect, COMM_WORLD by default, the root being its rank 0; how long they wait for each other.

    Returns
    -------
    With several ranks a context manager
        On the root it gives a `MPIVectorEnv`; on other ranks None, when all is over.
    With one rank a `MPIVectorEnv`
        It may be used in a `with` statement or without; then it is closed at the end of the program.

    Raises
    ------
    RolloutError
        On the root: an argument cannot work, ranks do not agree, or `record` cannot be written or is there already.
        Other ranks leave with its exit code.  With several ranks it is raised on entering the `with` statement.  What
        user code raised is its `__cause__`, on other ranks as a copy, and `except` clauses for that class catch it.
    """
    for name in unknown:
        words = argument_words(name, signature(connect).parameters, [option.name for option in fields(RolloutConfig)])
        raise TypeError(f"connect() got an unexpected keyword argument {name!r}{words}")
    if isinstance(env, list | tuple) and env_fns is None:
        env, env_fns = None, env
    request = Request(
        env=env,
        num_envs=_plain(num_envs),
        env_fns=env_fns,
        env_kwargs={} if env_kwargs is None else env_kwargs,
        vectorization_mode=vectorization_mode,
        autoreset_mode=autoreset_mode,
        infos=infos,
        actions=actions,
        copy=copy,
        num_groups=_plain(num_groups),
        batch_size=_plain(batch_size),
        dedicated_root=dedicated_root,
        policy=policy,
        policy_mode=policy_mode,
        policy_block=_plain(policy_block),
        trust_policy=trust_policy,
        record=record if record is None else os.fspath(record),
        record_compression=record_compression,
        on_fault=OnFault(_plain(max_env_restarts), check_finite, env_timeout_s, strict_dtypes, check_bounds),
        wait=wait,
    )
    try:
        return _connect(request, comm, timeout_s)
    except RolloutError as error:
        # The caller has no use for our frames.
        raise error.with_traceback(None) from error.__cause__


def _connect(request: "Request", comm: "MPI.Intracomm | None", timeout_s: float) -> Connection | MPIVectorEnv:
    end_with_launcher()
    connection = Connection(request, comm, timeout_s)
    if not is_alone(comm, timeout_s):
        return connection
    envs = connection.__enter__()
    assert envs is not None, "in one process there is nobody but the root"
    return envs


def _plain(value: Number) -> Number:
    """Return NumPy's integers as Python's, so that they are the same in what ranks compare."""
    return int(value) if isinstance(value, np.integer) else value  # type: ignore[return-value]  # As wide as before.


@dataclass(frozen=True)
class Request:
    """The arguments of `connect` that must be the same on all ranks."""

    env: Env | list[EnvFunction] | tuple[EnvFunction, ...] | None
    num_envs: int | None
    env_fns: Sequence[EnvFunction] | None
    env_kwargs: Kwargs | list[Kwargs] | tuple[Kwargs, ...]
    vectorization_mode: str
    autoreset_mode: str | AutoresetMode
    infos: Infos
    actions: str
    copy: bool
    num_groups: int
    batch_size: int | None
    dedicated_root: bool
    policy: PolicyArgument
    policy_mode: str
    policy_block: int
    trust_policy: bool
    record: str | None
    record_compression: str
    on_fault: OnFault
    wait: str

    def plan(self, num_ranks: int) -> Plan:
        """Make a plan for some ranks.

        Raises
        ------
        UsageError
            An argument cannot work.
        """
        self._check_choices()
        make = self.make
        num_envs, num_groups = _whole("num_envs", self.count), _whole("num_groups", self.num_groups)
        make.check(num_envs)
        is_first_ready = self.batch_size is not None
        division = Division(num_envs, num_ranks, self.dedicated_root, num_groups, is_first_ready)
        check_batch_size(division, 1 if self.batch_size is None else self.batch_size)
        plan = Plan(make, division, None, self.mode, self.infos, self._checked_on_fault(), wait=self.wait)
        if self.policy is None:
            return plan
        is_made = callable(self.policy) or is_maker(self.policy)
        maker = partial(make_model, self.policy) if is_made else None
        return replace(plan, has_policy=True, make_model=maker, keeps_extras=True)

    def policy_on_ranks(self, driver: Driver) -> PolicyOnRanks:
        """Have all ranks use the policy; for the root, when all ranks serve."""
        source = PolicySource(MADE, str(self.policy))
        if isinstance(self.policy, str) and not is_maker(self.policy):
            source = read_source(self.policy, self.policy_mode, self.trust_policy)
        return PolicyOnRanks(driver, source, PolicyOptions(self.policy_block), self.actions)

    def _check_choices(self) -> None:
        choices = (
            ("vectorization_mode", VECTORIZATION_MODES, self.vectorization_mode),
            ("wait", WAITS, self.wait),
            ("actions", ACTION_MODES, self.actions),
            ("policy_mode", POLICY_MODES, self.policy_mode),
            ("record_compression", COMPRESSIONS, self.record_compression),
        )
        if not isinstance(self.policy, str | None) and not callable(self.policy):
            raise UsageError(f"policy must be 'mine:make_policy', a function or a file, got {self.policy!r}")
        if type(self.policy_block) is not int or self.policy_block < 0:
            raise UsageError(f"policy_block must be a whole number of at least 0, got {self.policy_block!r}")
        for name, allowed, choice in choices:
            if choice not in allowed:
                raise UsageError(f"{name} must be one of {', '.join(allowed)}, got {choice!r}")
        is_file = isinstance(self.policy, str) and not is_maker(self.policy)
        check_file_options(is_file, self.policy_mode, self.trust_policy)
        if self.batch_size is not None and self.num_groups > 1:
            raise UsageError(f"batch_size makes a group of each rank, got num_groups={self.num_groups} too; use one")

    @property
    def make(self) -> EnvMaker:
        """What makes the envs.

        Raises
        ------
        UsageError
            It is given twice, or not at all.
        """
        kwargs = tuple(self.env_kwargs) if isinstance(self.env_kwargs, list) else self.env_kwargs
        if not isinstance(self.env, list | tuple | None) and self.env_fns is None:
            return EnvMaker(self.env, kwargs, vectorization_of(self.vectorization_mode, self.env))
        if self.env is not None or self.env_fns is None:
            raise UsageError(f"give one of env and env_fns, got {'none' if self.env is None else 'both'}")
        if not isinstance(self.env_fns, list | tuple):
            raise UsageError(f"env_fns must be a list of callables, one for each env, got {self.env_fns!r}")
        return EnvMaker(tuple(self.env_fns), kwargs, vectorization_of(self.vectorization_mode, None))

    @property
    def count(self) -> int | None:
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
        mode = modes.get(str(text).upper().replace("_", ""))
        if mode is None:
            allowed = ", ".join(mode.name.lower() for mode in AutoresetMode)
            raise UsageError(f"autoreset_mode must be one of {allowed}, got {self.autoreset_mode!r}")
        return mode

    def fingerprint(self) -> dict[str, str]:
        """Return the arguments as text, a callable by its name: ranks compare them."""
        arguments = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "on_fault"}
        arguments |= {"num_envs": self.count, "env" if self.env_fns is None else "env_fns": self.make.name}
        arguments["policy"] = name_of(self.policy) if callable(self.policy) else self.policy
        arguments |= vars(self.on_fault)
        arguments["max_env_restarts"] = arguments.pop("max_restarts")
        arguments["env_timeout_s"] = arguments.pop("timeout_s")
        return {f"the argument {name} of connect": repr(value) for name, value in arguments.items()}


def _whole(name: str, number: object) -> int:
    if type(number) is not int or number < 1:
        raise UsageError(f"{name} must be a whole number of at least 1, got {number!r}")
    return number
