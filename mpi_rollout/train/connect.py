"""`connect`: the envs of all ranks for a trainer on the root.

All ranks run the trainer's script.  In `with connect(...) as envs` the root gets a vector env; every other rank
serves it inside, comes out when the root leaves, and gets None.  A second connection that the root opens meanwhile is
served by the same ranks.  In one process `envs = connect(...)` is enough.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import partial
from inspect import cleandoc, signature
from textwrap import wrap
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar, Unpack

import numpy as np
from gymnasium.vector import AutoresetMode

from mpi_rollout.config import ACTION_MODES, RolloutConfig
from mpi_rollout.core.partition import Division
from mpi_rollout.core.policy_kinds import MADE, is_maker
from mpi_rollout.drive.driver import Driver
from mpi_rollout.drive.policy_on_ranks import PolicyOnRanks
from mpi_rollout.envs.env_maker import Env, EnvFunction, EnvMaker, Kwargs, name_of
from mpi_rollout.envs.faults import OnFault
from mpi_rollout.errors import Option, RolloutError, UsageError
from mpi_rollout.exchange.infos import Infos
from mpi_rollout.policies.model import PolicySource, make_model
from mpi_rollout.policies.sources import check_file_options, read_source
from mpi_rollout.process.launcher import end_with_launcher
from mpi_rollout.ranks.set_up import Plan, check_batch_size
from mpi_rollout.shared_options import POLICY_BLOCK, SharedOptions, vectorization_of
from mpi_rollout.train.connection import Connection, is_alone
from mpi_rollout.train.vector_env import MPIVectorEnv
from mpi_rollout.words import argument_words

if TYPE_CHECKING:
    from mpi4py import MPI

Number = TypeVar("Number")
PolicyArgument = str | Callable[[], object] | None  # None is no policy.


class Options(TypedDict, total=False):
    """The types of `SharedOptions`, for programs that check types."""

    vectorization_mode: str
    num_groups: int
    batch_size: int | None
    root_envs: int | None
    policy_mode: str
    policy_block: int | None
    trust_policy: bool
    wait: str
    compression: str
    max_env_restarts: int
    env_timeout_s: float | None
    env_checks: str


def connect(
    env: Env | list[EnvFunction] | tuple[EnvFunction, ...] | None = None,
    num_envs: int | None = None,
    *,
    env_kwargs: Kwargs | list[Kwargs] | tuple[Kwargs, ...] | None = None,
    autoreset_mode: str | AutoresetMode = AutoresetMode.NEXT_STEP,
    infos: Infos = "all",
    actions: str = "pass",
    copy: bool = True,
    policy: PolicyArgument = None,
    record: str | os.PathLike[str] | None = None,
    comm: "MPI.Intracomm | None" = None,
    timeout_s: float = 300.0,
    **options: Unpack[Options],
) -> Connection | MPIVectorEnv:
    """Connect all ranks' envs to a trainer.  **Collective**: all ranks call it, with the same arguments.

    Parameters
    ----------
    env, num_envs
        An env id or its spec, or a callable that returns one env; how many envs all ranks have together.  A callable
        with a parameter `env_index` is given the index of the env, from 0 to num_envs - 1.  Or a list of callables, one
        for each env, as Gymnasium's SyncVectorEnv and Stable-Baselines3's DummyVecEnv take it; each rank calls those
        of its own envs only.
    env_kwargs
        Keyword arguments for every env, or a list with those of each env.
    autoreset_mode
        "next_step", "same_step" or "disabled", as in Gymnasium.
    infos
        "all": what Gymnasium's SyncVectorEnv gives; it costs nothing where envs say nothing.  A mapping such as
        {{"lives": int, "position": [float, 3]}}: these alone, cheaply.  "none": no infos.
    actions
        What to do with actions outside of their space.  "pass": floats reach the env as they are, as in Gymnasium's
        SyncVectorEnv, but in the dtype of their space; integers outside are refused.  "clip": they are set to the
        nearest bound; NaN is refused.  "check": they are refused; a float outside by rounding alone is set to the
        bound.
    copy
        False: observations are views that live until the call after the next; copy what you keep.
    policy
        What chooses the actions of `collect` on the ranks: "mine:make_policy", a function `make_policy` itself, or a
        file; see `mpi_rollout.policies.model.Model`.
    record
        A new file, which gets what the envs show, the infos that `infos` names, and what the trainer does, in the
        format of runs; rank 0 writes it.  It is called FILE.part until the envs are closed, or the program ends.  See
        docs/how-to/training.md.
    comm, timeout_s
        The ranks to connect, COMM_WORLD by default, the root being its rank 0; how long they wait for each other.
    **options
        Options that a run has on the command line as well, with the same meaning and default:

        {options}

        An env that is made again has no values of `set_attr`, and a generator that nobody has seeded; with
        infos="all", what failed is its info "env_error".

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
    for name in options.keys() - {field.name for field in fields(SharedOptions)}:
        own = [*signature(connect).parameters, *Options.__annotations__]
        words = argument_words(name, own, [option.name for option in fields(RolloutConfig)])
        raise TypeError(f"connect() got an unexpected keyword argument {name!r}{words}")
    request = Request(
        env=env,
        num_envs=_plain(num_envs),
        env_kwargs={} if env_kwargs is None else env_kwargs,
        autoreset_mode=autoreset_mode,
        infos=infos,
        actions=actions,
        copy=copy,
        policy=policy,
        record=record if record is None else os.fspath(record),
        options=_shared(options),
    )
    try:
        return _connect(request, comm, timeout_s)
    except RolloutError as error:
        # The caller has no use for our frames.
        raise error.with_traceback(None) from error.__cause__


def _documented() -> str:
    """Return the help texts of the shared options, as a list in a docstring."""
    texts = (f"`{own.name}` ({own.default!r}): {own.metadata['help']}." for own in fields(SharedOptions))
    return "\n    ".join("* " + "\n      ".join(wrap(text, 108)) for text in texts)


if connect.__doc__:  # With -OO there is none.
    connect.__doc__ = cleandoc(connect.__doc__).format(options=_documented())


def _connect(request: "Request", comm: "MPI.Intracomm | None", timeout_s: float) -> Connection | MPIVectorEnv:
    end_with_launcher()
    connection = Connection(request, comm, timeout_s)
    if not is_alone(comm, timeout_s):
        return connection
    envs = connection.__enter__()
    assert envs is not None, "in one process there is nobody but the root"
    return envs


def _shared(options: Mapping[str, Any]) -> SharedOptions:
    return SharedOptions(**{name: _plain(value) for name, value in options.items()})


def _plain(value: Number) -> Number:
    """Return NumPy's integers as Python's, so that they are the same in what ranks compare."""
    return int(value) if isinstance(value, np.integer) else value  # type: ignore[return-value]  # As wide as before.


@dataclass(frozen=True)
class Request:
    """The arguments of `connect` that must be the same on all ranks."""

    env: Env | list[EnvFunction] | tuple[EnvFunction, ...] | None
    num_envs: int | None
    env_kwargs: Kwargs | list[Kwargs] | tuple[Kwargs, ...]
    autoreset_mode: str | AutoresetMode
    infos: Infos
    actions: str
    copy: bool
    policy: PolicyArgument
    record: str | None
    options: SharedOptions

    def plan(self, num_ranks: int) -> Plan:
        """Make a plan for some ranks.

        Raises
        ------
        UsageError
            An argument cannot work.
        """
        self._check()
        make, options = self.make, self.options
        make.check(num_envs := self.count)
        is_first_ready = options.batch_size is not None
        division = Division(num_envs, num_ranks, options.root_envs, options.num_groups, is_first_ready)
        check_batch_size(division, options.batch_size or 1)
        plan = Plan(make, division, None, self.mode, self.infos, OnFault.of(options), wait=options.wait)
        if self.policy is None:
            return plan
        is_made = callable(self.policy) or is_maker(self.policy)
        maker = partial(make_model, self.policy) if is_made else None
        return replace(plan, has_policy=True, make_model=maker, keeps_extras=True)

    def policy_on_ranks(self, driver: Driver) -> PolicyOnRanks:
        """Have all ranks use the policy; for the root, when all ranks serve."""
        source, options = PolicySource(MADE, str(self.policy)), self.options
        if isinstance(self.policy, str) and not is_maker(self.policy):
            source = read_source(self.policy, options.policy_mode, options.trust_policy)
        block = POLICY_BLOCK if options.policy_block is None else options.policy_block
        return PolicyOnRanks(driver, source, self.actions, block)

    def _check(self) -> None:
        self.options.check()
        if self.actions not in ACTION_MODES:
            raise UsageError(f"actions must be one of {', '.join(ACTION_MODES)}, got {self.actions!r}")
        if not isinstance(self.policy, str | None) and not callable(self.policy):
            raise UsageError(f"policy must be 'mine:make_policy', a function or a file, got {self.policy!r}")
        is_file = isinstance(self.policy, str) and not is_maker(self.policy)
        check_file_options(is_file, self.options.policy_mode, self.options.trust_policy)

    @property
    def make(self) -> EnvMaker:
        """What makes the envs; UsageError if nothing was given."""
        kwargs = tuple(self.env_kwargs) if isinstance(self.env_kwargs, list) else self.env_kwargs
        if self.env is None:
            raise UsageError("give env: an env id, a callable that returns one env, or a list of callables, got none")
        mode = vectorization_of(self.options.vectorization_mode, self.env)
        return EnvMaker(tuple(self.env) if isinstance(self.env, list) else self.env, kwargs, mode)

    @property
    def count(self) -> int:
        """The number of envs: as it was given, or of a list of callables; UsageError if it is none."""
        is_listed = isinstance(self.env, list | tuple) and self.num_envs is None
        number = len(self.env) if is_listed else self.num_envs  # type: ignore[arg-type]  # mypy forgets that it is.
        if type(number) is not int or number < 1:
            raise UsageError(Option("num_envs"), f" must be a whole number of at least 1, got {number!r}")
        return number

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
        arguments = vars(self) | vars(self.options) | {"num_envs": self.count, "env": self.make.name}
        arguments["policy"] = name_of(self.policy) if callable(self.policy) else self.policy
        del arguments["options"]
        return {f"the argument {name} of connect": repr(value) for name, value in arguments.items()}
