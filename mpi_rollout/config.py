"""The configuration of a run: options that were checked, and go together.

A file stores it as JSON.  Here it is read again, as this version or an older one wrote it, or damaged.
"""

import json
import platform
import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import asdict, dataclass, fields, replace

import numpy as np

from mpi_rollout import __version__
from mpi_rollout.core.column_types import checked_types
from mpi_rollout.core.policy_kinds import CALLED, MAKE_POLICY, RANDOM, is_maker, kind_of_name
from mpi_rollout.errors import DataError, Option, UsageError, as_flag
from mpi_rollout.options import AUTO, POLICY_BLOCK, RunOptions, vectorization_of
from mpi_rollout.process.clock import seconds_of
from mpi_rollout.process.paths import located

ENV_OPTIONS = ("env", "env_factory", "env_kwargs", "wrappers")
# What decides on the data, and so must not change when a run is continued.
DATA_OPTIONS = (
    *ENV_OPTIONS,
    *("num_envs", "first_env", "num_steps", "num_episodes", "seed", "episode_seeds"),
    *("policy", "policy_kwargs", "policy_device", "policy_mode", "policy_block", "vectorization_mode"),
    *("trajectories", "actions", "store_extras", "store_infos"),
)

MOST_ENVS = 2**31  # Random numbers of kernels and of JAX know an env by 31 bits of its index.


@dataclass(frozen=True, kw_only=True)
class RolloutConfig(RunOptions):
    """The options of `run`; UsageError if no run can have them.

    The same values give the same data, whatever the number of ranks.
    """

    def __post_init__(self) -> None:
        for kwargs in self.env_kwargs if isinstance(self.env_kwargs, list) else [self.env_kwargs]:
            if not isinstance(kwargs, dict):
                raise UsageError(
                    f"--env-kwargs must be a JSON object, or a list of one for each env, got {json.dumps(kwargs)}"
                )
        self.check()
        if self.max_walltime is not None:
            seconds_of(self.max_walltime)
        object.__setattr__(self, "vectorization_mode", vectorization_of(self.vectorization_mode, self.env))
        if self.policy_block == self._usual_block:  # This is the same as an option that is not given.
            object.__setattr__(self, "policy_block", None)
        object.__setattr__(self, "store_infos", checked_types(self.store_infos))
        for conflict in self._conflicts():
            raise UsageError(conflict)

    @property
    def path(self) -> str:
        """The output's whole path: envs and policies may change the current folder.  `out` is as its user typed it."""
        return located(self.out)

    @property
    def has_model(self) -> bool:
        """The policy is a file, or is made by `make_policy`: each rank can load it, and it is asked block by block."""
        return kind_of_name(self.policy) not in (RANDOM, CALLED)

    @property
    def in_lockstep(self) -> bool:
        """All ranks take each exchange together."""
        return self.batch_size is None and self.num_groups == 1

    @property
    def is_random(self) -> bool:
        """Actions are random ones."""
        return self.policy == RANDOM

    @property
    def _usual_block(self) -> int:
        return POLICY_BLOCK if self.has_model else 0

    @property
    def block(self) -> int:
        """The number of envs for which the policy is asked at a time; 0 is all that are there."""
        return self._usual_block if self.policy_block is None else self.policy_block

    @property
    def asks_in_blocks(self) -> bool:
        """A policy on the root is a `BlockPolicy`."""
        return self.has_model or (not self.is_random and self.block != 0)

    @property
    def runs_ahead(self) -> bool:
        """Ranks can take many steps between two exchanges: no action depends on what rank 0 has got of the envs."""
        return self.is_random or self.asks_on_ranks

    @property
    def asks_on_ranks(self) -> bool:
        """Each rank asks the policy for the actions of its own envs."""
        return self.has_model and self.policy_on != "root"

    @property
    def traced(self) -> tuple[range, range]:
        """The ranks and the steps of `trace_part`."""
        first_rank, last_rank, first, last = map(int, re.findall("[0-9]+", self.trace_part))
        return range(first_rank, last_rank + 1), range(first, last + 1)

    def _conflicts(self) -> Iterator[str]:
        """Yield what is wrong about options that do not go together."""
        if (self.env is None) == (self.env_factory is None):
            count = "none; all commands: python -m mpi_rollout --help" if self.env is None else "both"
            yield f"give one of --env ID and --env-factory MODULE:CALLABLE, got {count}"
        if self.policy_on == "workers" and not self.runs_ahead:
            yield (
                "--policy-on workers is for random actions and for policies that every rank can load: files, and "
                f"MODULE:{MAKE_POLICY}; --policy {self.policy} is on rank 0 alone; leave one of the two out"
            )
        if self.first_env and (last := self.first_env + self.num_envs - 1) >= MOST_ENVS:
            yield f"--first-env {self.first_env} makes {last} the index of the last env; it must be below {MOST_ENVS}"
        if self.store_infos and not self.trajectories:
            yield "--store-infos stores them with the trajectories, got --no-trajectories; use one"
        if self.num_episodes is not None and not self.trajectories:
            yield "--num-episodes counts the episodes that are stored, got --no-trajectories; use one"
        if self.storage == "sharded" and not self.trajectories:
            yield "--storage sharded is for trajectories, got --no-trajectories; use one"
        if not self.episode_seeds:
            yield from (f"--no-episode-seeds {words}" for words in self._conflicts_of_few_seeds())
        if not all(self.traced):
            yield f"--trace-part must be like 0-7:0-999, first and last rank, got {self.trace_part}"
        if self.on_rank_loss == "shrink":
            yield from (f"--on-rank-loss shrink {words}" for words in self._conflicts_of_shrinking())

    def _conflicts_of_few_seeds(self) -> Iterator[str]:
        """Yield what does not go together with envs that are seeded once."""
        if self.vectorization_mode != "sync":
            mode = f"--vectorization-mode {self.vectorization_mode}"
            yield f"is for single envs, got {mode}; leave it out, or give --vectorization-mode sync"
        if self.max_env_restarts > 0:
            yield "and --max-env-restarts do not go together: a new env would have no seed; leave one of the two out"
        if self.on_rank_loss == "shrink":
            yield "and --on-rank-loss shrink do not go together: lost envs would have no seed; leave one of the two out"

    def _conflicts_of_shrinking(self) -> Iterator[str]:
        """Yield what does not go together with ranks that may be lost."""
        if not self.in_lockstep:
            groups = f"--batch-size {self.batch_size}" if self.num_groups == 1 else f"--num-groups {self.num_groups}"
            yield f"is for ranks in lockstep, got {groups}; leave one of the two out"
        if self.ranks_per_env > 1:
            yield f"needs envs of one rank each, got --ranks-per-env {self.ranks_per_env}; leave one of the two out"
        if self.wait == "sleep":
            yield "needs MPI's own waits, got --wait sleep; leave one of the two out"
        if self.max_env_restarts > 0:
            yield "and --max-env-restarts do not go together yet; leave one of the two out"
        if self.is_random and self.policy_on == "root":
            yield "needs random actions that the ranks draw, got --policy-on root; leave one of the two out"
        if self.fragment_length not in (AUTO, "1") and not self.runs_ahead:
            yield (
                f"with --fragment-length {self.fragment_length} is for actions that the ranks choose; use "
                "--fragment-length 1"
            )

    def to_json(self) -> str:
        """All values, keys sorted."""
        return json.dumps(asdict(self), sort_keys=True)


def part_of_run(config: RolloutConfig, envs: range) -> RolloutConfig:
    """Return the configuration of the run that collects some envs of this one alone."""
    kwargs = config.env_kwargs
    if isinstance(kwargs, list):
        kwargs = kwargs[envs.start : envs.stop]
    return replace(config, num_envs=len(envs), first_env=config.first_env + envs.start, env_kwargs=kwargs)


def flag(name: str) -> str:
    """Return a field's option as the user types it."""
    return as_flag(Option(name))


def switch(name: str) -> str:
    """Return an option without a value, as the user types it: it changes the default."""
    return flag("no-" + name if getattr(RolloutConfig, name) else name)


def versions() -> dict[str, str]:
    """Return the versions of what takes part in making the data."""
    import gymnasium  # Not for whoever only reads a configuration.

    return {
        "mpi_rollout": __version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "gymnasium": gymnasium.__version__,
    }


def unused(config: RolloutConfig, typed: Collection[str] = ()) -> dict[str, str]:
    """Return the options that change nothing, and why: those that were `typed`, or are not at their default."""
    is_asked, modes = not config.is_random, "native, envpool or vector_entry_point"
    needs = {  # Whether this run uses an option that not every run uses, and what that needs.
        "limit_s": (config.measure_limit, "--measure-limit"),
        "env_threads": (config.vectorization_mode != "sync", f"--vectorization-mode {modes}"),
        "trace_part": (config.trace is not None, "--trace"),
        "store_extras": (is_maker(config.policy), f"--policy MODULE:{MAKE_POLICY}"),
        "policy_block": (is_asked, "another --policy than random"),
        "shards_per_node": (config.storage != "single", "--storage sharded"),
    }
    why = {
        name: f"is for {what}, which is not given; add it, or leave this out"
        for name, (is_used, what) in needs.items()
        if not is_used
    }
    if not config.trajectories:
        of_files = "store_extras", "compression"
        why |= dict.fromkeys(of_files, "is for trajectories, got --no-trajectories; use one")
    return {
        name: words
        for name, words in why.items()
        if flag(name) in typed or getattr(config, name) != getattr(RolloutConfig, name)
    }


def check_used(config: RolloutConfig, typed: Collection[str] = ()) -> None:
    """Raise UsageError if an option changes nothing: who types it expects something of it.

    Only command lines are checked so, with the options that were `typed`.
    """
    for name, why in unused(config, typed).items():
        value = getattr(config, name)
        text = f"{value:g}" if isinstance(value, float) else value
        raise UsageError(f"{switch(name) if value is True else f'{flag(name)} {text}'} {why}")


def read_config(text: object, path: str) -> RolloutConfig:
    """Read the attribute `config` of the file `path`; options that it does not have yet get their defaults.

    DataError if it is no configuration, or a newer version's, which has options that are unknown here.
    """
    try:
        values = json.loads(text)  # type: ignore[arg-type]  # A damaged file may have anything there.
    except (TypeError, ValueError, RecursionError):
        values = None
    if not isinstance(values, dict):
        raise DataError(f"{path}: its attribute config should be a JSON object, got {str(text)[:80]!r}")
    try:
        if unknown := sorted(values.keys() - {field.name for field in fields(RolloutConfig)}):
            raise DataError(
                f"{path}: its run had the option {flag(unknown[0])}, which mpi_rollout {__version__} does not know; "
                "read it with the version that wrote it"
            )
        return RolloutConfig(**values)
    except ValueError as error:
        raise DataError(f"{path}: {error}") from None
    except UsageError as error:
        raise DataError(f"{path}: no run has its options: {error.shown(as_flag)}") from error


def difference(name: str, before: object, now: object, as_text: Callable[[object], str]) -> str:
    """Say that an option is not what it was; `as_text` makes text of its values."""
    if isinstance(now, bool):
        default = getattr(RolloutConfig, name)
        words = ("not given" if value in (default, None) else "given" for value in (before, now))
        return "{} was {}, is {}".format(switch(name), *words)
    return f"{flag(name)} was {as_text(before)}, is {as_text(now)}"
