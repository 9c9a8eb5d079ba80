"""The arguments of `connect`, as ranks compare them, and what follows from them."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import partial
from inspect import signature
from typing import Any, TypeVar

import cloudpickle
import numpy as np
from gymnasium.vector import AutoresetMode

from mpi_rollout.config import ACTION_MODES, RolloutConfig
from mpi_rollout.core.partition import Division
from mpi_rollout.core.policy_kinds import FORMATS, MADE, RANDOM, kind_of_name
from mpi_rollout.drive.actions import PolicyOnRanks
from mpi_rollout.drive.driver import Driver
from mpi_rollout.envs.env_maker import Env, EnvFunction, EnvMaker, Kwargs, Wrappers, name_of, named_wrappers
from mpi_rollout.envs.faults import OnFault
from mpi_rollout.errors import Option, UsageError
from mpi_rollout.exchange.infos import Infos
from mpi_rollout.policies.model import PolicySource, make_model
from mpi_rollout.policies.sources import check_options, read_source
from mpi_rollout.ranks.set_up import Plan, check_batch_size
from mpi_rollout.shared_options import POLICY_BLOCK, SharedOptions, vectorization_of
from mpi_rollout.words import argument_words

PolicyArgument = str | Callable[[], object] | None  # None is no policy.
Number = TypeVar("Number")


@dataclass(frozen=True)
class Request:
    """The arguments of `connect` that must be the same on all ranks."""

    env: Env | list[EnvFunction] | tuple[EnvFunction, ...] | None = None
    num_envs: int | None = None
    env_kwargs: Kwargs | list[Kwargs] | tuple[Kwargs, ...] = field(default_factory=dict)
    wrappers: Wrappers = ""
    autoreset_mode: str | AutoresetMode = AutoresetMode.NEXT_STEP
    infos: Infos = "all"
    actions: str = "pass"
    copy: bool = True
    policy: PolicyArgument = None
    record: str | None = None
    options: SharedOptions = field(default_factory=SharedOptions)

    @classmethod
    def read(cls, function: Callable[..., object], arguments: Mapping[str, Any]) -> "Request":
        """Read the arguments with which a user called a function; TypeError names one that there is not."""
        own, shared = ({each.name for each in fields(kind)} for kind in (cls, SharedOptions))
        own.remove("options")
        for name in arguments.keys() - own - shared:
            known = [*own, *shared, *signature(function).parameters]
            words = argument_words(name, known, [option.name for option in fields(RolloutConfig)])
            raise TypeError(f"{function.__name__}() got an unexpected keyword argument {name!r}{words}")
        given = {name: _plain(value) for name, value in arguments.items()}
        if given.get("record") is not None:
            given["record"] = os.fspath(given["record"])
        if given.get("env_kwargs", {}) is None:
            given["env_kwargs"] = {}
        options = SharedOptions(**{name: given.pop(name) for name in shared & given.keys()})
        return cls(**given, options=options)

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
        maker = partial(make_model, self.policy, options.policy_kwargs, options.policy_device)
        return replace(plan, has_policy=True, make_model=maker if self._kind == MADE else None, keeps_extras=True)

    def policy_on_ranks(self, driver: Driver) -> PolicyOnRanks:
        """Let all ranks use the policy; called by the root when all ranks serve."""
        source, options = PolicySource(MADE, str(self.policy)), self.options
        if isinstance(self.policy, str) and self._kind != MADE:
            source = read_source(self.policy, options.policy_mode, options.trust_policy)
            source = replace(source, device=options.policy_device)
        block = POLICY_BLOCK if options.policy_block is None else options.policy_block
        return PolicyOnRanks(driver, source, self.actions, block)

    def _check(self) -> None:
        self.options.check()
        if self.actions not in ACTION_MODES:
            raise UsageError(f"actions must be one of {', '.join(ACTION_MODES)}, got {self.actions!r}")
        if not isinstance(self.policy, str | None) and not callable(self.policy):
            raise UsageError(f"policy must be 'mine:make_policy', a function or a file, got {self.policy!r}")
        check_options(self._kind, self.options)

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
        kwargs = tuple(self.env_kwargs) if isinstance(self.env_kwargs, list) else self.env_kwargs
        if self.env is None:
            raise UsageError("give env: an env id, a callable that returns one env, or a list of callables, got none")
        mode = vectorization_of(self.options.vectorization_mode, self.env)
        env = tuple(self.env) if isinstance(self.env, list) else self.env
        return EnvMaker(env, kwargs, mode, wrappers=named_wrappers(self.wrappers))

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
        arguments["wrappers"] = [name for name, _ in self.make.wrappers]
        arguments["policy"] = name_of(self.policy) if callable(self.policy) else self.policy
        del arguments["options"]
        return {f"the argument {name} of connect": repr(value) for name, value in arguments.items()}


def _plain(value: Number) -> Number:
    """Return NumPy's integers as Python's, so that they are the same in what ranks compare."""
    return int(value) if isinstance(value, np.integer) else value  # type: ignore[return-value]  # It is as wide.
