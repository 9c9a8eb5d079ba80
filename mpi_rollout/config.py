"""The configuration of a run: one frozen dataclass.  The command line is derived from it, and the file stores it."""

import json
import platform
import re
from dataclasses import asdict, dataclass

import numpy as np

from mpi_rollout import __version__
from mpi_rollout.core.column_types import checked_types
from mpi_rollout.core.policy_kinds import CALLED, FILES, MAKE_POLICY, RANDOM, kind_of_name
from mpi_rollout.errors import Option, UsageError, as_flag
from mpi_rollout.process.clock import seconds_of
from mpi_rollout.process.paths import located
from mpi_rollout.shared_options import (
    AUTO,
    POLICY_BLOCK,
    SharedOptions,
    for_tests,
    on_failure,
    to_run,
    to_speed,
    to_store,
    vectorization_of,
)

ON_RANK_LOSS = ("abort", "shrink")
ACTION_MODES = ("check", "clip", "pass")
POLICY_ON = (AUTO, "root", "workers")
PROGRESS = (AUTO, "bar", "lines", "none")
ENV_OPTIONS = ("env", "env_factory", "env_kwargs", "wrappers")
# What decides on the data, and so must not change when a run is continued.
DATA_OPTIONS = (
    *ENV_OPTIONS,
    *("num_envs", "num_steps", "num_episodes", "seed", "policy", "policy_kwargs", "policy_device"),
    *("policy_mode", "policy_block", "vectorization_mode"),
    *("trajectories", "actions", "store_extras", "store_infos"),
)


@dataclass(frozen=True)
class RolloutConfig(SharedOptions):
    """The options of `run`.  The same values give the same data, whatever the number of ranks.

    Raises
    ------
    UsageError
        A value that no run can have.
    """

    env: str | None = to_run(
        None, "id of a registered env, as gymnasium.make takes it: CartPole-v1, ale_py:ALE/Breakout-v5", metavar="ID"
    )
    env_factory: str | None = to_run(
        None,
        "callable that returns one env, for envs that are not registered; FILE.py:CALLABLE is possible, too; if it "
        "has a parameter env_index, it gets the index of the env",
        metavar="MODULE:CALLABLE",
    )
    env_kwargs: dict[str, object] | list[dict[str, object]] = to_run(
        dict,
        "keyword arguments of the envs: a JSON object for all envs, or a list with one object for each env",
        metavar="JSON",
    )
    wrappers: str = to_run(
        "",
        "wrappers of each env, the innermost first, with commas between: gymnasium.wrappers:FlattenObservation, or a "
        "callable of your own that takes an env and returns one (FILE.py:CALLABLE is possible, too)",
        metavar="MODULE:CALLABLE,...",
    )
    num_envs: int = to_run(64, "number of envs over all ranks", least=1)
    num_steps: int = to_run(1000, "number of steps of each env; with --num-episodes, at most so many", least=1)
    num_episodes: int | None = to_run(
        None,
        "stop after the first step in which so many episodes have ended, of all envs together; --num-steps is the "
        "bound, so give enough of them",
        metavar="M",
        least=1,
    )
    seed: int = to_run(0, "seed of all random numbers", least=0)
    policy: str = to_run(
        RANDOM,
        "random; or a callable that makes a batch of actions from a batch of observations (FILE.py:CALLABLE is "
        f"possible, too; a class is called once, with --policy-kwargs); or a file: {FILES}; or "
        "MODULE:make_policy, or another function whose name begins with make_, which returns an object with "
        "act(observations, env_indices, uniforms)",
        metavar="MODULE:CALLABLE|FILE",
    )
    store_extras: bool = to_store(
        False, "store what the policy of make_policy gives besides actions, such as log_prob and value, in extras/NAME"
    )
    store_infos: dict[str, object] | str = to_store(
        dict,
        "store these infos of the envs in infos/NAME, with masks of the envs that have them: names, dtypes and sizes "
        'such as \'{"lives": int, "position": [float, 3]}\', with / between the keys of nested dicts; all is what is '
        "numeric in the infos of env 0's first reset and step; an action mask is the info action_mask",
        metavar="TYPES|all",
    )
    actions: str = to_run(
        "check",
        "what to do with actions outside of the action space: check refuses them, but corrects rounding "
        "errors; clip sets them to the nearest bound; pass gives floats to the env as they are, and refuses integers "
        "that are outside",
        choices=ACTION_MODES,
    )
    out: str = to_store(
        "results/rollout.h5",
        "file to write; if the same run was interrupted, the same command continues it; if it is complete, the same "
        "command with more --num-steps extends it",
        metavar="FILE",
    )
    overwrite: bool = to_store(
        False,
        "replace the file that is there when this run is complete; until then it stays; an unfinished file of another "
        "run is dropped at the start, and one of this run is continued",
    )
    env_threads: int | None = to_speed(
        None,
        "threads of a rank's natively vectorized envs: of EnvPool's and ALE's, and of JAX and torch if the envs are "
        "the first to load them; by default the rank's share of the cores that it may use",
        metavar="N",
        least=1,
    )
    fragment_length: str = to_speed(
        AUTO,
        "largest number of steps that ranks take between two exchanges; more than 1 is for random actions, for "
        "policies that the ranks run, and for callables that plan ahead; auto is up to 256, as many as fit into 1 MiB "
        "on a rank and take at most 0.4 s, and 1 for a callable; the data do not depend on it",
        metavar="L|auto",
    )
    policy_on: str = to_speed(
        AUTO,
        "who chooses actions: root, which sends them to the ranks; workers, each for its own envs; auto is the workers "
        "for random actions and for a policy of a file or of make_policy, and the root for a callable; the data do not "
        "depend on it",
        choices=POLICY_ON,
    )
    trajectories: bool = to_store(True, "measure throughput only; store no trajectories")
    measure_limit: bool = for_tests(
        False, "between parts of the run, measure bare env.step loops too, and compare the run with them"
    )
    limit_s: float = for_tests(
        1.0, "with --measure-limit, seconds of each of the six measurements", metavar="S", is_time=True
    )
    max_walltime: str | None = on_failure(
        None,
        "stop before the run has taken this long, with all steps committed; written as SLURM does: 01:30:00",
        metavar="TIME",
    )
    on_rank_loss: str = on_failure(
        "abort",
        "what to do when a rank is lost: abort ends the job; shrink goes on without its envs, and needs "
        "mpirun --with-ft ulfm",
        choices=ON_RANK_LOSS,
    )
    start_timeout_s: float = on_failure(
        600.0,
        "seconds that ranks wait for each other at the start; imports can take minutes where thousands of ranks "
        "share a file system",
        metavar="S",
        is_time=True,
    )
    expect_ranks: int | None = on_failure(None, "refuse to run on another number of ranks", metavar="N", least=1)
    progress: str = to_store(
        "auto", "how to show the progress; auto is a bar on a terminal, else lines", choices=PROGRESS
    )
    log_dir: str | None = to_store(
        None,
        "folder for curves that TensorBoard shows while the run goes on: returns and lengths of episodes, env steps "
        "per second, shares of time; a run that is continued goes on in them (extra 'tensorboard')",
        metavar="DIR",
    )
    trace: str | None = to_store(
        None,
        "file for a trace of what ranks do, for ui.perfetto.dev and chrome://tracing, written at the end; .json.gz is "
        "compressed",
        metavar="FILE",
    )
    trace_part: str = to_store(
        "0-7:0-999",
        "with --trace, which ranks and which steps, counted from the start of the run: 0-7:0-999",
        metavar="RANKS:STEPS",
    )
    json: bool = to_store(False, "print the summary as one line of JSON")

    def __post_init__(self) -> None:
        self._check_own()
        if (self.env is None) == (self.env_factory is None):
            count = "none" if self.env is None else "both"
            raise UsageError(f"give one of --env ID and --env-factory MODULE:CALLABLE, got {count}")
        object.__setattr__(self, "vectorization_mode", vectorization_of(self.vectorization_mode, self.env))
        if self.policy_block == self._usual_block:  # This is the same as an option that is not given.
            object.__setattr__(self, "policy_block", None)
        object.__setattr__(self, "store_infos", checked_types(self.store_infos))
        self._check_pairs()

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
    def acts_on_ranks(self) -> bool:
        """Each rank chooses the actions of its own envs: at random, or by the policy."""
        return self.is_random or (self.has_model and self.policy_on != "root")

    def _check_own(self) -> None:
        """Check each option by itself."""
        for kwargs in self.env_kwargs if isinstance(self.env_kwargs, list) else [self.env_kwargs]:
            if not isinstance(kwargs, dict):
                raise UsageError(
                    f"--env-kwargs must be a JSON object, or a list of one for each env, got {json.dumps(kwargs)}"
                )
        self.check()
        if self.max_walltime is not None:
            seconds_of(self.max_walltime)
        if not re.fullmatch(r"\d+-\d+:\d+-\d+", self.trace_part, re.ASCII):
            raise UsageError(f"--trace-part must be like 0-7:0-999, first and last rank, got {self.trace_part}")
        length = self.fragment_length
        if length != AUTO and not (length.isascii() and length.isdigit() and int(length) > 0):
            raise UsageError(f"--fragment-length must be auto or a number of steps, at least 1, got {length}")

    def _check_pairs(self) -> None:
        """Refuse options that do not go together."""
        if self.policy_on == "workers" and not self.is_random and not self.has_model:
            raise UsageError(
                "--policy-on workers is for random actions and for policies that every rank can load: files, and "
                f"MODULE:{MAKE_POLICY}; --policy {self.policy} is on rank 0 alone; leave one of the two out"
            )
        if self.store_infos and not self.trajectories:
            raise UsageError("--store-infos stores them with the trajectories, got --no-trajectories; use one")
        if self.num_episodes is not None and not self.trajectories:
            raise UsageError("--num-episodes counts the episodes that are stored, got --no-trajectories; use one")
        if self.on_rank_loss == "shrink":
            self._check_shrinking()

    def _check_shrinking(self) -> None:
        """Refuse what does not go together with ranks that may be lost."""
        groups = f"--batch-size {self.batch_size}" if self.num_groups == 1 else f"--num-groups {self.num_groups}"
        refused = {
            f" is for ranks in lockstep, got {groups}": self.batch_size is not None or self.num_groups > 1,
            " needs MPI's own waits, got --wait sleep": self.wait == "sleep",
            " and --max-env-restarts do not go together yet": self.max_env_restarts > 0,
        }
        for why, is_so in refused.items():
            if is_so:
                raise UsageError(f"--on-rank-loss shrink{why}; leave one of the two out")
        if self.fragment_length not in (AUTO, "1") and not self.acts_on_ranks:
            raise UsageError(
                f"--on-rank-loss shrink with --fragment-length {self.fragment_length} is for actions that the ranks "
                "choose; use --fragment-length 1"
            )

    def to_json(self) -> str:
        """All values, keys sorted."""
        return json.dumps(asdict(self), sort_keys=True)


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
