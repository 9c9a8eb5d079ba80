"""The options that runs and `connect` have alike: one name, one default and one help text for each."""

import re
from dataclasses import Field, dataclass, field, fields
from functools import partial
from types import UnionType
from typing import Any, get_args, get_origin

from mpi_rollout.errors import Option, UsageError
from mpi_rollout.process.clock import MAX_TIMEOUT_S

AUTO = "auto"
VECTORIZATION_MODES = (AUTO, "sync", "vector_entry_point", "envpool", "native")
POLICY_MODES = ("deterministic", "sample")
WAITS = (AUTO, "spin", "sleep")
COMPRESSIONS = ("none", "gzip", "lz4", "zstd", "blosc")
NONE, CHECKS = "none", ("finite", "bounds", "dtypes")
POLICY_BLOCK = 64  # The policy block of a policy that the ranks can load.

# The groups of options in --help and in the reference, in their order.
WHAT, STORED, SPEED = "what to run", "what is stored and shown", "how fast"
FAULTS, TESTS = "when something fails, and how long it may take", "for tests"
GROUPS = WHAT, STORED, SPEED, FAULTS, TESTS


def option(default: Any, help_text: str, group: str = "", **extra: Any) -> Any:
    """Make a dataclass field with its help text beside its default.

    Parameters
    ----------
    extra
        `choices` and `metavar`, as argparse takes them; `least`, the smallest number that the option may have;
        `is_time`, where it is a number of seconds.
    group
        One of `GROUPS`; options of other commands than `run` have none.
    """
    metadata = {"group": group, "help": help_text, **extra}
    if callable(default):
        return field(default_factory=default, metadata=metadata)
    return field(default=default, metadata=metadata)


to_run, to_store, to_speed, on_failure, for_tests = (partial(option, group=group) for group in GROUPS)


@dataclass(frozen=True)
class SharedOptions:
    """The options that a run and `connect` share.  Nothing is checked before `check` is called."""

    vectorization_mode: str = to_run(
        AUTO,
        "how a rank steps its envs: sync, one after the other; vector_entry_point, by the vectorized version that is "
        "registered with the env; envpool, by EnvPool's version of it; native, by what the factory makes of the env "
        "indices of a rank and a seed; auto is vector_entry_point for mpi_rollout/... envs, else sync",
        choices=VECTORIZATION_MODES,
    )
    num_groups: int = to_speed(
        1,
        "number of groups of envs that are stepped in turn; with 2, the ranks step one group while the policy or the "
        "trainer works on the other",
        least=1,
    )
    batch_size: int | None = to_speed(
        None,
        "first ready, first served: the policy or the trainer gets the envs of the K ranks that are ready first; "
        "by default all ranks take each step together",
        metavar="K",
        least=1,
    )
    root_envs: int | None = to_speed(
        None,
        "number of envs of rank 0, which drives the other ranks and writes besides; with 0 it steps none; by default "
        "as many as each of them; the end of a run says how many would make ranks wait less",
        metavar="N",
        least=0,
    )
    policy_mode: str = to_run(
        "deterministic",
        "which action a policy of a file takes: deterministic, the one that it thinks best; sample, one that is drawn "
        "from its distribution, by random numbers that depend on seed, env and step",
        choices=POLICY_MODES,
    )
    policy_kwargs: dict[str, object] = to_run(
        dict, "keyword arguments of a class or of a factory, which makes the policy", metavar="JSON"
    )
    policy_device: str = to_run(
        AUTO,
        "where the network of a file computes: cpu; cuda, a GPU of the host, whose ranks share its GPUs in turn; or "
        "cuda:K, one of them; a factory or a class gets this device as its argument device; auto is cpu for "
        "a file, and lets others choose; actions may differ in the last bits between devices",
        metavar="auto|cpu|cuda[:K]",
    )
    policy_block: int | None = to_speed(
        None,
        "number of envs for which the policy is asked at a time, so that actions do not depend on ranks and groups; "
        f"0 asks for all envs that are there, and actions may then differ in the last bits (default: {POLICY_BLOCK} "
        "for a file and for make_policy, 0 for a callable)",
        metavar="B",
        least=0,
    )
    trust_policy: bool = to_run(
        False,
        "execute the code that is in a policy's file: networks of torch (.pt, .pt2), pickled code of "
        "Stable-Baselines3, and whatever is not known to be harmless; give it for your own files only",
    )
    wait: str = to_speed(
        AUTO,
        "how a rank waits for messages: spin (fastest, uses the core) or sleep; auto spins, and sleeps where a "
        "host has four ranks or more for each core and while other programs share the cores",
        choices=WAITS,
    )
    compression: str = to_store(
        NONE,
        "compress the trajectories in the file, on the core that rank 0 runs on; lz4, zstd and blosc (extra "
        "'compression') compress images and other large arrays of whole numbers, many times as fast as gzip; gzip "
        "compresses everything, and every HDF5 reader has it",
        choices=COMPRESSIONS,
    )
    max_env_restarts: int = on_failure(
        0,
        "how often each env may be made again when it fails, which ends its episode as truncated and faulted; with 0 "
        "the first failure ends the run",
        metavar="N",
        least=0,
    )
    env_timeout_s: float | None = on_failure(
        None,
        "seconds that a step or reset of an env may take; a longer one is a failure of that env",
        metavar="S",
        is_time=True,
    )
    env_checks: str = on_failure(
        NONE,
        "what else is a failure of an env, with commas between: finite, NaN and infinity in observations and rewards; "
        "bounds, observations outside of their space, rounding errors aside; dtypes, observations whose dtype is not "
        "that of their space; by default the first two are stored and counted, dtypes are cast as Gymnasium does it, "
        "and a warning names the first of each",
        metavar="finite,bounds,dtypes",
    )

    @property
    def checks(self) -> frozenset[str]:
        """The names in `env_checks`."""
        return frozenset() if self.env_checks == NONE else frozenset(self.env_checks.split(","))

    def check(self) -> None:
        """Raise UsageError if an option has a value that cannot work, or does not go with another."""
        for own in fields(self):
            check_value(own, getattr(self, own.name))
        if not self.checks <= {*CHECKS}:
            expected = f" must be {NONE}, or some of {', '.join(CHECKS)} with commas between, got {self.env_checks!r}"
            raise UsageError(Option("env_checks"), expected)
        if not re.fullmatch(r"auto|cpu|cuda(:\d{1,9})?", self.policy_device):
            expected = f" must be auto, cpu, cuda or cuda:K, got {self.policy_device!r}"
            raise UsageError(Option("policy_device"), expected)
        if self.batch_size is not None and self.num_groups > 1:
            groups = Option("num_groups", self.num_groups)
            raise UsageError(Option("batch_size"), " makes a group of each rank, got ", groups, " too; use one")


def check_value(own: "Field[Any]", value: Any) -> None:
    """Raise UsageError if a field cannot have a value, as far as its type and its metadata tell."""
    option, choices, least = Option(own.name), own.metadata.get("choices"), own.metadata.get("least")
    if choices is not None and value not in choices:
        raise UsageError(option, f" must be one of {', '.join(choices)}, got {value}")
    if value is None and own.default is None:
        return
    if least is not None:
        if not is_of(value, int):
            raise UsageError(option, f" must be a whole number of at least {least}, got {value!r}")
        if value < least:
            raise UsageError(option, f" must be at least {least}, got {value}")
    if own.metadata.get("is_time") and not (is_of(value, float) and 0 < value <= MAX_TIMEOUT_S):
        raise UsageError(option, f" must be more than 0 s and at most {MAX_TIMEOUT_S:g}, got {value!r}")
    if not is_of(value, own.type):
        is_dict = get_origin(own.type) is dict
        expected = "must be a JSON object, got" if is_dict else "cannot be"
        expected = "must be True or False, got" if own.type is bool else expected
        raise UsageError(option, f" {expected} {value!r:.80}")


def is_of(value: object, annotation: object) -> bool:
    """Tell whether a value has the type of a field; a whole number is a float as well, a bool is no number."""
    alternatives = get_args(annotation) if isinstance(annotation, UnionType) else (annotation,)
    types = tuple(get_origin(alternative) or alternative for alternative in alternatives)
    if isinstance(value, bool):
        return bool in types
    return isinstance(value, types) or (float in types and isinstance(value, int))


def vectorization_of(mode: str, env: object) -> str:
    """Return the vectorization mode that "auto" stands for, or the one that was given."""
    if mode != AUTO:
        return mode
    is_own = isinstance(env, str) and env.rpartition(":")[2].startswith("mpi_rollout/")
    return "vector_entry_point" if is_own else "sync"
