"""The arguments of `connect`, as ranks compare them, and what follows from them."""

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from functools import partial
from inspect import signature

import cloudpickle
import numpy as np
from gymnasium.vector import AutoresetMode

from mpi_rollout.core.column_types import MASK_NAME
from mpi_rollout.core.policy_kinds import FORMATS, MADE, RANDOM, kind_of_name
from mpi_rollout.drive.driver import Driver
from mpi_rollout.drive.policy_on_ranks import PolicyOnRanks
from mpi_rollout.envs.env_maker import Env, EnvFunction, EnvMaker, Kwargs
from mpi_rollout.envs.faults import OnFault
from mpi_rollout.envs.wrapping import Wrappers, name_of, named_wrappers
from mpi_rollout.errors import Option, UsageError
from mpi_rollout.exchange.infos import Infos
from mpi_rollout.options import ACTION_MODES, POLICY_BLOCK, RunOptions, SharedOptions, vectorization_of
from mpi_rollout.policies.model import PolicySource, make_model
from mpi_rollout.policies.sources import check_options, read_source
from mpi_rollout.ranks.set_up import Plan, divided
from mpi_rollout.train.agents import FORMS
from mpi_rollout.words import argument_words

PolicyArgument = str | Callable[[], object] | None  # None is no policy.


@dataclass(frozen=True)
class Request(SharedOptions):
    """The arguments of `connect` that must be the same on all ranks.  Nothing is checked before `plan` is called.

    Parameters
    ----------
    env, num_envs
        An env id or its spec, or a callable that returns one env; how many envs all ranks have together.  A callable
        with a parameter `env_index` is given the index of the env, from 0 to num_envs - 1.  Or a list of callables, one
        for each env, as Gymnasium's SyncVectorEnv and Stable-Baselines3's DummyVecEnv take it; each rank calls those
        of its own envs only.
    env_kwargs, wrappers
        As the options of runs; wrappers may be callables, too, and a list.
    autoreset_mode
        "next_step", "same_step" or "disabled", as in Gymnasium.
    infos
        "all": what Gymnasium's SyncVectorEnv gives; it costs nothing where envs say nothing.  A mapping such as
        {"lives": int, "position": [float, 3]}: these alone, cheaply.  "none": no infos.
    actions
        As the option of runs; "pass" is what Gymnasium's SyncVectorEnv does, but in the dtype of their space.
    agents
        Of envs with several agents, "dict": dicts by agent; "axis": for agents with equal spaces arrays of shape
        (num_envs, num_agents, ...).
    copy
        False: observations are views that live until the call after the next; copy what you keep.
    policy
        What chooses the actions of `collect` on the ranks: "mine:make_policy", a function or class itself, or a
        file; see `mpi_rollout.policies.model.Model`.
    record
        A new file, which gets what the envs show, the infos that `infos` names, and what the trainer does, in the
        format of runs; rank 0 writes it.  It is called FILE.part until the envs are closed, or the program ends.  See
        docs/how-to/training.md.
    **options
        As those of runs, see `run --help`: vectorization_mode, ranks_per_env, num_groups, batch_size, root_envs,
        policy_mode, policy_kwargs, policy_device, policy_block, trust_policy, wait, compression, max_env_restarts,
        env_timeout_s, env_checks.  An env that is made again has no values of `set_attr`, and a generator that nobody
        has seeded; with infos="all", what failed is its info "env_error".
    """

    env: Env | list[EnvFunction] | tuple[EnvFunction, ...] | None = None
    num_envs: int | None = None
    env_kwargs: Kwargs | list[Kwargs] | tuple[Kwargs, ...] | None = None
    wrappers: Wrappers = ""
    autoreset_mode: str | AutoresetMode = AutoresetMode.NEXT_STEP
    infos: Infos = "all"
    actions: str = "pass"
    agents: str = FORMS[0]
    copy: bool = True
    policy: PolicyArgument = None
    record: str | os.PathLike[str] | None = None

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if isinstance(value, np.integer):  # Ranks compare arguments as text, in which it would have its type.
                object.__setattr__(self, name, int(value))
        if self.record is not None:
            object.__setattr__(self, "record", os.fspath(self.record))

    def pickled(self, what: str) -> bytes:
        """Return it as bytes for the ranks; UsageError, which begins with `what` it is, if that cannot be."""
        try:
            return cloudpickle.dumps(self)
        except Exception as error:
            raise UsageError(
                f"{what} is sent to the ranks and must be picklable, got {type(error).__name__}: {error}; give the env "
                "by its id, or a function of a module with env_kwargs"
            ) from error

    def plan(self, num_ranks: int) -> Plan:
        """Make a plan for some ranks; UsageError if an argument cannot work."""
        self._check()
        make = self.make
        make.check(num_envs := self.count)
        division = divided(self, num_envs, num_ranks)
        plan = Plan(make, division, None, self.mode, self.infos, OnFault.of(self), wait=self.wait)
        if self.policy is None:
            return plan
        maker = partial(make_model, self.policy, self)
        return replace(plan, has_policy=True, make_model=maker if self._kind == MADE else None, keeps_extras=True)

    def policy_on_ranks(self, driver: Driver) -> PolicyOnRanks:
        """Let all ranks use the policy; called by the root when all ranks serve."""
        source = PolicySource(MADE, str(self.policy))
        if isinstance(self.policy, str) and self._kind != MADE:
            source = read_source(self.policy, self.policy_mode, self.trust_policy)
            source = replace(source, device=self.policy_device)
        block = POLICY_BLOCK if self.policy_block is None else self.policy_block
        return PolicyOnRanks(driver, source, self.actions, block)

    def _check(self) -> None:
        self.check()
        if self.actions not in ACTION_MODES:
            raise UsageError(f"actions must be one of {', '.join(ACTION_MODES)}, got {self.actions!r}")
        if self.agents not in FORMS:
            raise UsageError(Option("agents"), f" must be one of {', '.join(FORMS)}, got {self.agents!r}")
        if not isinstance(self.policy, str | None) and not callable(self.policy):
            raise UsageError(f"policy must be 'mine:make_policy', a function or a file, got {self.policy!r}")
        check_options(self._kind, self)

    @property
    def _kind(self) -> str:
        """The kind of the policy, see `core.policy_kinds`; a text that names no factory is that of a file."""
        if not isinstance(self.policy, str):
            return RANDOM if self.policy is None else MADE
        kind = kind_of_name(self.policy)
        return kind if kind in (MADE, *FORMATS) else next(iter(FORMATS))

    @property
    def make(self) -> EnvMaker:
        """What makes the envs; UsageError if nothing was given."""
        kwargs = {} if self.env_kwargs is None else self.env_kwargs
        kwargs = tuple(kwargs) if isinstance(kwargs, list) else kwargs
        if self.env is None:
            raise UsageError("give env: an env id, a callable that returns one env, or a list of callables, got none")
        mode = vectorization_of(self.vectorization_mode, self.env)
        env = tuple(self.env) if isinstance(self.env, list) else self.env
        asks_masks = isinstance(self.infos, Mapping) and MASK_NAME in self.infos
        return EnvMaker(env, kwargs, mode, wrappers=named_wrappers(self.wrappers), asks_masks=asks_masks)

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
        """Return the arguments as text, a callable by its name: ranks compare them, first what is run, then how."""
        named = {
            "num_envs": self.count,
            "env": self.make.name,
            "wrappers": [name for name, _ in self.make.wrappers],
            "policy": name_of(self.policy) if callable(self.policy) else self.policy,
        }
        arguments = named | vars(self) | named
        return {f"the argument {name} of connect": repr(value) for name, value in arguments.items()}


def check_arguments(function: Callable[..., object], names: Iterable[str]) -> None:
    """Refuse a keyword argument that no `Request` has, as Python does, and say what the user may have meant."""
    known = [own.name for own in fields(Request)]
    for name in names:
        if name not in known:
            of_run = [option.name for option in fields(RunOptions)]
            words = argument_words(name, [*known, *signature(function).parameters], of_run)
            raise TypeError(f"{function.__name__}() got an unexpected keyword argument {name!r}{words}")
