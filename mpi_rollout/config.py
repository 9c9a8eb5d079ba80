"""The configuration of a run: one frozen dataclass.  The command line is derived from it, and the file stores it."""

import json
import platform
from dataclasses import asdict, dataclass, field, fields
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

import numpy as np

from mpi_rollout import __version__
from mpi_rollout.core.clock import MAX_TIMEOUT_S, seconds_of
from mpi_rollout.core.info_types import checked_types
from mpi_rollout.core.policy_kinds import FILE, FILES, MADE, MAKE_POLICY, RANDOM, kind_of_name
from mpi_rollout.errors import DataError, UsageError
from mpi_rollout.process.place import located

VECTORIZATION_MODES = ("auto", "sync", "vector_entry_point", "envpool", "native")
MODES = ("sync", "async")
ON_ENV_ERROR = ("abort", "restart")
ON_RANK_LOSS = ("abort", "shrink")
ACTION_MODES = ("check", "clip", "pass")
WAITS = ("auto", "spin", "sleep")
COMPRESSIONS = ("none", "gzip", "lz4", "zstd", "blosc")
AUTO = "auto"
INFERENCES = (AUTO, "root", "workers")
PROGRESS = ("auto", "bar", "lines", "none")


def option(default: Any, help_text: str, **extra: Any) -> Any:
    """Make a dataclass field with its help text beside its default.

    Parameters
    ----------
    extra
        What the command line has besides: `choices` and `metavar`, as argparse takes them; `old_name`, by which the
        option was called before: it is still read, on the command line and in files.
    """
    metadata = {"help": help_text, **extra}
    return (
        field(default_factory=default, metadata=metadata)
        if callable(default)
        else field(default=default, metadata=metadata)
    )


def vectorization_of(mode: str, env: object) -> str:
    """Return how envs are stepped where "auto" may stand."""
    if mode != AUTO:
        return mode
    is_own = isinstance(env, str) and env.rpartition(":")[2].startswith("mpi_rollout/")
    return "vector_entry_point" if is_own else "sync"


ENV_OPTIONS = ("env", "env_factory", "env_kwargs")
# What decides on the data, and so must not change when a run is continued.
DATA_OPTIONS = (
    *ENV_OPTIONS,
    *("num_envs", "num_steps", "seed", "policy", "policy_mode", "policy_block", "vectorization_mode"),
    *("trajectories", "actions", "store_extras", "store_infos"),
)
POLICY_MODES = "deterministic", "sample"
POLICY_BLOCK = 64  # Where a policy is asked in blocks.
LEAST = {"seed": 0, "policy_block": 0} | dict.fromkeys(
    (
        "num_envs",
        "num_steps",
        "num_groups",
        "batch_size",
        "expect_ranks",
        "max_env_restarts",
        "env_threads",
        "root_envs",
    ),
    1,
)


@dataclass(frozen=True)
class RolloutConfig:
    """The options of `run`.  The same values give the same data, whatever the number of ranks.

    Raises
    ------
    UsageError
        A value that no run can have.
    """

    env: str | None = option(
        None, "id of a registered env, as gymnasium.make takes it: CartPole-v1, ale_py:ALE/Breakout-v5", metavar="ID"
    )
    env_factory: str | None = option(
        None,
        "callable that returns one env, for envs that are not registered; FILE.py:CALLABLE is possible, too; if it "
        "has a parameter env_index, it gets the index of the env",
        metavar="MODULE:CALLABLE",
    )
    env_kwargs: dict[str, Any] | list[dict[str, Any]] = option(
        dict,
        "keyword arguments of the envs: a JSON object for all envs, or a list with one object for each env",
        metavar="JSON",
    )
    num_envs: int = option(64, "number of envs over all ranks")
    num_steps: int = option(1000, "number of steps of each env")
    seed: int = option(0, "seed of all random numbers")
    policy: str = option(
        RANDOM,
        "random; or a callable that makes a batch of actions from a batch of observations (FILE.py:CALLABLE is "
        f"possible, too; a class is called once, without arguments); or a file: {FILES} (with --trust-policy); or "
        "MODULE:make_policy, which returns an object with act(observations, env_indices, uniforms)",
        metavar="MODULE:CALLABLE|FILE",
    )
    policy_mode: str = option(
        "deterministic",
        "which action a policy of a file takes: deterministic, the one that it thinks best; sample, one that is drawn "
        "from its distribution, by random numbers that depend on seed, env and step",
        choices=POLICY_MODES,
    )
    policy_block: int | None = option(
        None,
        "number of envs for which the policy is asked at a time, so that actions do not depend on ranks and groups; "
        "0 asks for all envs that are there, and actions may then differ in the last bits (default: 64 for a file and "
        "for make_policy, 0 for a callable)",
        metavar="B",
    )
    store_extras: bool = option(
        False, "store what the policy of make_policy gives besides actions, such as log_prob and value, in extras/NAME"
    )
    store_infos: dict[str, Any] | str = option(
        dict,
        "store these infos of the envs in infos/NAME, with masks of the envs that have them: names, dtypes and sizes "
        'such as \'{"lives": int, "position": [float, 3]}\', with / between the keys of nested dicts; all is what is '
        "numeric in the infos of env 0's first reset and step; an action mask is the info action_mask",
        metavar="TYPES|all",
    )
    trust_policy: bool = option(
        False,
        "execute the code that is in a policy's file: TorchScript, pickled code of Stable-Baselines3, and whatever is "
        "not known to be harmless; give it for your own files only",
    )
    actions: str = option(
        "check",
        "what to do with actions outside of the action space: check refuses them, but corrects rounding "
        "errors; clip sets them to the nearest bound; pass gives floats to the env as they are, and refuses integers "
        "that are outside",
        choices=ACTION_MODES,
    )
    out: str = option(
        "results/rollout.h5",
        "file to write; if the same run was interrupted, the same command continues it; if it is complete, the same "
        "command with more --num-steps extends it",
        metavar="FILE",
    )
    vectorization_mode: str = option(
        "auto",
        "how a rank steps its envs: sync, one after the other; vector_entry_point, by the vectorized version that is "
        "registered with the env; envpool, by EnvPool's version of it; native, by what the factory makes of the env "
        "indices of a rank and a seed; auto is vector_entry_point for mpi_rollout/... envs, else sync",
        choices=VECTORIZATION_MODES,
    )
    env_threads: int | None = option(
        None,
        "threads of a rank's natively vectorized envs: of EnvPool's and ALE's, and of JAX and torch if the envs are "
        "the first to load them; by default the rank's share of the cores that it may use",
        metavar="N",
    )
    mode: str = option(
        "sync",
        "sync: all ranks take each step together; async: the rank that is ready first is served first",
        choices=MODES,
    )
    num_groups: int = option(
        1,
        "number of groups of envs that are stepped in turn; with 2, the ranks step one group while the policy works "
        "on the other",
    )
    batch_size: int = option(1, "with --mode async, the number of ranks whose envs the policy gets in one call")
    dedicated_root: bool = option(False, "rank 0 steps no envs; it only drives the other ranks")
    root_envs: int | None = option(
        None,
        "number of envs of rank 0, which drives the other ranks and writes besides; by default as many as each of "
        "them; the end of a run says how many would make ranks wait less",
        metavar="N",
    )
    fragment_length: str = option(
        AUTO,
        "largest number of steps that ranks take between two exchanges; more than 1 is for random actions, for "
        "policies that the ranks run, and for callables that plan ahead; auto is up to 256, as many as fit into 1 MiB "
        "on a rank and take at most 0.4 s, and 1 for a callable; the data do not depend on it",
        metavar="L|auto",
    )
    inference: str = option(
        AUTO,
        "who chooses actions: root, which sends them to the ranks; workers, each for its own envs; auto is the workers "
        "for a policy of a file or of make_policy, and the root for a callable; random actions come from the root, and "
        "after a fifth of a second from the workers if they took the root more than 1 % of that time; the data do not "
        "depend on it",
        choices=INFERENCES,
    )
    wait: str = option(
        "auto",
        "how a rank waits for messages: spin (fastest, uses the core) or sleep; auto spins, and sleeps where a "
        "host has four ranks or more for each core and while other programs share the cores",
        choices=WAITS,
    )
    compression: str = option(
        "none",
        "compress the trajectories in the file, on the core that rank 0 runs on; lz4, zstd and blosc (extra "
        "'compression') compress images and other large arrays of whole numbers, many times as fast as gzip; gzip "
        "compresses everything, and every HDF5 reader has it",
        choices=COMPRESSIONS,
    )
    trajectories: bool = option(True, "measure throughput only; store no trajectories")
    measure_limit: bool = option(
        False, "between parts of the run, measure bare env.step loops too, and compare the run with them"
    )
    limit_s: float = option(1.0, "with --measure-limit, seconds of each of the six measurements", metavar="S")
    on_env_error: str = option(
        "abort",
        "what to do when an env raises: abort ends the run; restart makes the env again and marks its episode "
        "as truncated and faulted",
        choices=ON_ENV_ERROR,
    )
    max_env_restarts: int = option(10, "with --on-env-error restart, how often each env may be restarted", metavar="N")
    env_timeout_s: float | None = option(
        None,
        "seconds that a step or reset of an env may take; a longer one is an error of that env",
        metavar="S",
        old_name="env_timeout",
    )
    check_finite: bool = option(
        False,
        "treat NaN and infinity in observations and rewards as errors of the env; by default they are stored, "
        "counted in the file, and a warning names the first",
    )
    check_bounds: bool = option(
        False,
        "treat observations outside of their space, rounding errors aside, as errors of the env; by default "
        "they are stored, counted in the file, and a warning names the first",
    )
    strict_dtypes: bool = option(
        False,
        "refuse observations whose dtype is not that of their space; by default they are cast, as Gymnasium "
        "does it, and a warning names the env",
    )
    max_walltime: str | None = option(
        None,
        "stop before the run has taken this long, with all steps committed; written as SLURM does: 01:30:00",
        metavar="TIME",
    )
    on_rank_loss: str = option(
        "abort",
        "what to do when a rank is lost: abort ends the job; shrink goes on without its envs, and needs "
        "mpirun --with-ft ulfm",
        choices=ON_RANK_LOSS,
        old_name="ft",
    )
    start_timeout_s: float = option(
        600.0,
        "seconds that ranks wait for each other at the start; imports can take minutes where thousands of ranks "
        "share a file system",
        metavar="S",
        old_name="start_timeout",
    )
    expect_ranks: int | None = option(None, "refuse to run on another number of ranks", metavar="N")
    progress: str = option(
        "auto", "how to show the progress; auto is a bar on a terminal, else lines", choices=PROGRESS
    )
    json: bool = option(False, "print the summary as one line of JSON")

    def __post_init__(self) -> None:
        if (self.env is None) == (self.env_factory is None):
            count = "none" if self.env is None else "both"
            raise UsageError(f"give one of --env ID and --env-factory MODULE:CALLABLE, got {count}")
        object.__setattr__(self, "vectorization_mode", vectorization_of(self.vectorization_mode, self.env))
        if self.policy_block == self._usual_block:  # As good as not given.
            object.__setattr__(self, "policy_block", None)
        object.__setattr__(self, "store_infos", checked_types(self.store_infos))
        self._check_values()
        self._check_pairs()

    @property
    def path(self) -> str:
        """The output's whole path: envs and policies may change the current folder.  `out` is as its user typed it."""
        return located(self.out)

    @property
    def has_model(self) -> bool:
        """The policy is a file, or is made by `make_policy`: each rank can load it, and it is asked block by block."""
        return kind_of_name(self.policy) in (FILE, MADE)

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
        """The ranks ask the policy for the actions of their own envs."""
        return self.has_model and self.inference != "root"

    def _check_values(self) -> None:
        """Check each option by itself."""
        for name, least in LEAST.items():
            value = getattr(self, name)
            if value is not None and value < least:
                raise UsageError(f"{flag(name)} must be at least {least}, got {value}")
        for kwargs in self.env_kwargs if isinstance(self.env_kwargs, list) else [self.env_kwargs]:
            if not isinstance(kwargs, dict):
                raise UsageError(
                    f"--env-kwargs must be a JSON object, or a list of one for each env, got {json.dumps(kwargs)}"
                )
        for own_field in fields(self):
            choices, value = own_field.metadata.get("choices"), getattr(self, own_field.name)
            if choices is not None and value not in choices:
                raise UsageError(f"{flag(own_field.name)} must be one of {', '.join(choices)}, got {value}")
        for name in ("limit_s", "env_timeout_s", "start_timeout_s"):
            value = getattr(self, name)
            if value is not None and not 0 < value <= MAX_TIMEOUT_S:
                raise UsageError(f"{flag(name)} must be more than 0 s and at most {MAX_TIMEOUT_S:g}, got {value:g}")
        if self.max_walltime is not None:
            seconds_of(self.max_walltime)
        length = self.fragment_length
        if length != AUTO and not (length.isascii() and length.isdigit() and int(length) > 0):
            raise UsageError(f"--fragment-length must be auto or a number of steps, at least 1, got {length}")

    def _check_pairs(self) -> None:
        """Refuse options that do not go together."""
        if self.mode == "async" and self.num_groups > 1:
            raise UsageError(
                f"--mode async makes a group of each rank, got --num-groups {self.num_groups} too; use one"
            )
        if self.dedicated_root and self.root_envs is not None:
            raise UsageError(f"--dedicated-root gives rank 0 no envs, got --root-envs {self.root_envs} too; use one")
        if self.inference == "workers" and not self.is_random and not self.has_model:
            raise UsageError(
                "--inference workers is for random actions and for policies that every rank can load: files, and "
                f"MODULE:{MAKE_POLICY}; --policy {self.policy} is on rank 0 alone; leave one of the two out"
            )
        if self.store_infos and not self.trajectories:
            raise UsageError("--store-infos stores them with the trajectories, got --no-trajectories; use one")
        if self.on_rank_loss == "shrink":
            self._check_shrinking()

    def _check_shrinking(self) -> None:
        """Refuse what does not go together with ranks that may be lost."""
        if self.mode != "sync" or self.num_groups > 1:
            got = f"--num-groups {self.num_groups}" if self.num_groups > 1 else f"--mode {self.mode}"
            raise UsageError(f"--on-rank-loss shrink is for ranks in lockstep, got {got}; leave one of the two out")
        if self.wait == "sleep":
            raise UsageError("--on-rank-loss shrink needs MPI's own waits, got --wait sleep; leave one of the two out")
        if self.on_env_error == "restart":
            raise UsageError(
                "--on-rank-loss shrink and --on-env-error restart do not go together yet; leave one of the two out"
            )
        is_chosen_there = self.acts_on_ranks or (self.is_random and self.inference != "root")
        if self.fragment_length not in (AUTO, "1") and not is_chosen_there:
            raise UsageError(
                f"--on-rank-loss shrink with --fragment-length {self.fragment_length} is for random actions that the "
                "ranks draw; use --inference workers, or --fragment-length 1"
            )

    def to_json(self) -> str:
        """All values, keys sorted."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: object, path: str) -> "RolloutConfig":
        """Read the attribute `config` of the file `path`, as `to_json` gives it.

        Options that the file does not have yet get their defaults.

        Raises
        ------
        DataError
            It is no configuration, or a newer version's, which has options that are unknown here.
        """
        values = _json_object(text)
        if values is None:
            raise DataError(f"{path}: its attribute config should be a JSON object, got {str(text)[:80]!r}")
        values = {NEW_NAMES.get(name, name): value for name, value in values.items()}
        types = get_type_hints(cls)
        if unknown := sorted(values.keys() - types.keys()):
            raise DataError(
                f"{path}: its run had the option {flag(unknown[0])}, which mpi_rollout {__version__} does not know; "
                "read it with the version that wrote it"
            )
        for name, value in values.items():
            if not _is_of(value, types[name]):
                raise DataError(f"{path}: {flag(name)} of its run cannot be {json.dumps(value)[:80]}")
        try:
            return cls(**values)
        except UsageError as error:
            raise DataError(f"{path}: no run has its options: {error}") from error


NEW_NAMES = {field.metadata["old_name"]: field.name for field in fields(RolloutConfig) if "old_name" in field.metadata}


def _json_object(text: object) -> dict[str, Any] | None:
    """Read a JSON object; None if the text is none."""
    try:
        value = json.loads(text)  # type: ignore[arg-type]  # A damaged file may have anything there.
    except (TypeError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _is_of(value: object, annotation: Any) -> bool:
    """Tell whether a value read from JSON has the type of a field; a whole number is a float as well."""
    alternatives = get_args(annotation) if isinstance(annotation, UnionType) else (annotation,)
    types = [get_origin(alternative) or alternative for alternative in alternatives]
    return type(value) in types or (type(value) is int and float in types)


def flag(name: str) -> str:
    """Return a field's option as the user types it."""
    return "--" + name.replace("_", "-")


def versions() -> dict[str, str]:
    """Return the versions of what takes part in making the data."""
    import gymnasium  # Not for whoever only reads a configuration.

    return {
        "mpi_rollout": __version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "gymnasium": gymnasium.__version__,
    }
