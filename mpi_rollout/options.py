"""The options of runs and of `connect`: the name, the default, the kind and the help text of each.

The command line, its reference, the stored configuration and all checks of single values follow from this table.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any

from mpi_rollout.core.option_values import check_value
from mpi_rollout.core.policy_kinds import FILES, RANDOM
from mpi_rollout.errors import Option, UsageError

AUTO, NONE = "auto", "none"
ACTION_MODES = ("check", "clip", "pass")
POLICY_BLOCK = 64  # The policy block of a policy that the ranks can load.

# The groups of options in --help and in the reference, in their order.
WHAT, STORED, SPEED = "what to run", "what is stored and shown", "how fast"
FAULTS, TESTS = "when something fails, and how long it may take", "for tests"
GROUPS = WHAT, STORED, SPEED, FAULTS, TESTS


def option(default: Any, group: str = "", **kind: Any) -> Callable[[str], Any]:
    """Return what makes a dataclass field of a help text.

    Parameters
    ----------
    group
        One of `GROUPS`; options of other commands than `run` have none.
    kind
        `choices` and `metavar`, as argparse takes them; `least`, the smallest number that the option may have;
        `is_time`, where it is a number of seconds; `form`, a regular expression and what its refusal says.
    """

    def described(help_text: str) -> Any:
        given = {"default_factory": default} if callable(default) else {"default": default}
        return field(**given, metadata={"group": group, "help": help_text, **kind})

    return described


to_run, to_store, to_speed, on_failure, for_tests = (partial(option, group=group) for group in GROUPS)


@dataclass(frozen=True, kw_only=True)
class SharedOptions:
    """The options that runs and `connect` have alike.  Nothing is checked before `check` is called."""

    vectorization_mode: str = to_run(AUTO, choices=(AUTO, "sync", "vector_entry_point", "envpool", "native"))(
        "how a rank steps its envs: sync, one after the other; vector_entry_point, by the vectorized version that is "
        "registered with the env; envpool, by EnvPool's version of it; native, by what the factory makes of the env "
        "indices of a rank and a seed; auto is vector_entry_point for mpi_rollout/... envs, else sync"
    )
    ranks_per_env: int = to_run(1, least=1, metavar="K")(
        "number of neighbouring ranks that make each env together, for an env that is an MPI program: the factory gets "
        "their communicator as its argument comm; reset and step are called on all of them with the same arguments; "
        "the program uses what the first of them returns"
    )
    num_groups: int = to_speed(1, least=1)(
        "number of groups of envs that are stepped in turn; with 2, the ranks step one group while the policy or the "
        "trainer works on the other"
    )
    batch_size: int | None = to_speed(None, least=1, metavar="K")(
        "first ready, first served: the policy or the trainer gets the envs of the K ranks that are ready first; "
        "by default all ranks take each step together"
    )
    root_envs: int | None = to_speed(None, least=0, metavar="N")(
        "number of envs of rank 0, which drives the other ranks and writes besides; with 0 it steps none; by default "
        "as many as each of them; the end of a run says how many would make ranks wait less"
    )
    policy_mode: str = to_run("deterministic", choices=("deterministic", "sample"))(
        "which action a policy of a file takes: deterministic, the one that it thinks best; sample, one that is drawn "
        "from its distribution, by random numbers that depend on seed, env and step"
    )
    policy_kwargs: dict[str, object] = to_run(dict, metavar="JSON")(
        "keyword arguments of a class or of a factory, which makes the policy"
    )
    policy_device: str = to_run(
        AUTO,
        metavar="auto|cpu|cuda[:K]",
        form=("auto|cpu|cuda(:[0-9]{1,9})?", "must be auto, cpu, cuda or cuda:K, got {!r}"),
    )(
        "where the network of a file computes: cpu; cuda, a GPU of the host, whose ranks share its GPUs in turn; or "
        "cuda:K, one of them; a factory or a class gets this device as its argument device; auto is cpu for "
        "a file, and lets others choose; actions may differ in the last bits between devices"
    )
    policy_block: int | None = to_speed(None, least=0, metavar="B")(
        "number of envs for which the policy is asked at a time, so that actions do not depend on ranks and groups; "
        f"0 asks for all envs that are there, and actions may then differ in the last bits (default: {POLICY_BLOCK} "
        "for a file and for make_policy, 0 for a callable)"
    )
    trust_policy: bool = to_run(False)(
        "execute the code that is in a policy's file: networks of torch (.pt, .pt2), pickled code of "
        "Stable-Baselines3, and whatever is not known to be harmless; give it for your own files only"
    )
    wait: str = to_speed(AUTO, choices=(AUTO, "spin", "sleep"))(
        "how a rank waits for messages: spin (fastest, uses the core) or sleep; auto spins, and sleeps where a "
        "host has four ranks or more for each core and while other programs share the cores"
    )
    compression: str = to_store(NONE, choices=(NONE, "gzip", "lz4", "zstd", "blosc"))(
        "compress the trajectories in the file, on the core that rank 0 runs on; lz4, zstd and blosc (extra "
        "'compression') compress images and other large arrays of whole numbers, many times as fast as gzip; gzip "
        "compresses everything, and every HDF5 reader has it"
    )
    max_env_restarts: int = on_failure(0, least=0, metavar="N")(
        "how often each env may be made again when it fails, which ends its episode as truncated and faulted; with 0 "
        "the first failure ends the run"
    )
    env_timeout_s: float | None = on_failure(None, is_time=True, metavar="S")(
        "seconds that a step or reset of an env may take; a longer one is a failure of that env"
    )
    env_checks: str = on_failure(
        NONE,
        metavar="finite,bounds,dtypes",
        form=(
            "none|(finite|bounds|dtypes)(,(finite|bounds|dtypes))*",
            "must be none, or some of finite, bounds, dtypes with commas between, got {!r}",
        ),
    )(
        "what else is a failure of an env, with commas between: finite, NaN and infinity in observations and rewards; "
        "bounds, observations outside of their space, rounding errors aside; dtypes, observations whose dtype is not "
        "that of their space; by default the first two are stored and counted, dtypes are cast as Gymnasium does it, "
        "and a warning names the first of each"
    )

    def check(self) -> None:
        """Raise UsageError if an option has a value that cannot work, or does not go with another."""
        for own in fields(self):
            if own.metadata:  # It is in the table.
                check_value(own, getattr(self, own.name))
        if self.batch_size is not None and self.num_groups > 1:
            groups = Option("num_groups", self.num_groups)
            raise UsageError(Option("batch_size"), " makes a group of each rank, got ", groups, " too; use one")
        mode = vectorization_of(self.vectorization_mode, getattr(self, "env", None))
        if self.ranks_per_env > 1 and mode != "sync":
            words = " is for single envs, got ", Option("vectorization_mode", mode), "; leave one of the two out"
            raise UsageError(Option("ranks_per_env", self.ranks_per_env), *words)


@dataclass(frozen=True, kw_only=True)
class RunOptions(SharedOptions):
    """The options of `run`; `config.RolloutConfig` checks them."""

    env: str | None = to_run(None, metavar="ID")(
        "id of a registered env, as gymnasium.make takes it: CartPole-v1, ALE/Breakout-v5, or my_sim:Foo-v0"
    )
    env_factory: str | None = to_run(None, metavar="MODULE:CALLABLE")(
        "callable that returns one env, for envs that are not registered; FILE.py:CALLABLE is possible, too; if it "
        "has a parameter env_index, it gets the index of the env"
    )
    env_kwargs: dict[str, object] | list[dict[str, object]] = to_run(dict, metavar="JSON")(
        "keyword arguments of the envs: a JSON object for all envs, or a list with one object for each env"
    )
    wrappers: str = to_run("", metavar="MODULE:CALLABLE,...")(
        "wrappers of each env, the innermost first, with commas between: gymnasium.wrappers:FlattenObservation, or a "
        "callable of your own that takes an env and returns one (FILE.py:CALLABLE is possible, too)"
    )
    num_envs: int = to_run(64, least=1)("number of envs over all ranks")
    first_env: int = to_run(0, least=0, metavar="A")(
        "collect envs A to A + --num-envs - 1 of a larger run, with the same data, for array jobs; env factories get "
        "these indices, and messages have them; a list of --env-kwargs, and the file, have this run's envs alone"
    )
    num_steps: int = to_run(1000, least=1)("number of steps of each env; with --num-episodes, at most so many")
    num_episodes: int | None = to_run(None, least=1, metavar="M")(
        "stop after the first step in which so many episodes have ended, of all envs together; --num-steps is the "
        "bound, so give enough of them"
    )
    seed: int = to_run(0, least=0)("seed of all random numbers")
    episode_seeds: bool = to_run(True)(
        "seed each env at its first reset only, as Gymnasium's vector envs do, which is faster where a seed costs "
        "much, as in Atari; by default each episode has a seed of its own, from which it can be stepped again"
    )
    seed_check: bool = to_run(True)(
        "begin without a look at env 0: by default the program makes it and resets it with one seed a few times, where "
        "that takes less than 2 s, to see whether it gives the same data"
    )
    policy: str = to_run(RANDOM, metavar="MODULE:CALLABLE|FILE")(
        "random; or a callable that makes a batch of actions from a batch of observations (FILE.py:CALLABLE is "
        f"possible, too; a class is called once, with --policy-kwargs); or a file: {FILES}; or "
        "MODULE:make_policy, or another function whose name begins with make_, which returns an object with "
        "act(observations, env_indices, uniforms)"
    )
    store_extras: bool = to_store(False)(
        "store what the policy of make_policy gives besides actions, such as log_prob and value, in extras/NAME"
    )
    store_infos: dict[str, object] | str = to_store(dict, metavar="TYPES|all")(
        "store these infos of the envs in infos/NAME, with masks of the envs that have them: names, dtypes and sizes "
        'such as \'{"lives": int, "position": [float, 3]}\', with / between the keys of nested dicts; all is what is '
        "numeric in the infos of env 0's first episode, of 300 steps at most; an action mask is the info action_mask"
    )
    actions: str = to_run("check", choices=ACTION_MODES)(
        "what to do with actions outside of the action space: check refuses them, but corrects rounding "
        "errors; clip sets them to the nearest bound; pass gives floats to the env as they are, and refuses integers "
        "that are outside"
    )
    out: str = to_store("results/rollout.h5", metavar="FILE")(
        "file to write; if the same run was interrupted, the same command continues it; if it is complete, the same "
        "command with more --num-steps extends it"
    )
    storage: str = to_store("single", choices=("single", "sharded", "auto"))(
        "single is one file, written by rank 0; sharded is a file for each node, written there, and --out is one data "
        "set over them; auto is sharded from two nodes on; the data do not depend on it"
    )
    shards_per_node: int = to_store(1, least=1, metavar="N")("with --storage sharded, number of files of each node")
    overwrite: bool = to_store(False)(
        "replace the file that is there when this run is complete; until then it stays; an unfinished file of another "
        "run is dropped at the start, and one of this run is continued"
    )
    env_threads: int | None = to_speed(None, least=1, metavar="N")(
        "threads of a rank's natively vectorized envs: of EnvPool's and ALE's, and of JAX and torch if the envs are "
        "the first to load them; by default the rank's share of the cores that it may use"
    )
    fragment_length: str = to_speed(
        AUTO,
        metavar="L|auto",
        form=("auto|0*[1-9][0-9]*", "must be auto or a number of steps, at least 1, got {}"),
    )(
        "largest number of steps that ranks take between two exchanges; more than 1 is for random actions, for "
        "policies that the ranks run, and for callables that plan ahead; auto is up to 256, as many as fit into 1 MiB "
        "on a rank and take at most 0.4 s, and 1 for a callable; the data do not depend on it"
    )
    policy_on: str = to_speed(AUTO, choices=(AUTO, "root", "workers"))(
        "who chooses actions: root, which sends them to the ranks; workers, each for its own envs; auto is the root "
        "for a callable, and for random actions unless those of a fragment have more than 1 MiB; it is the workers "
        "for a policy of a file or of make_policy; the data do not depend on it"
    )
    trajectories: bool = to_store(True)("measure throughput only; store no trajectories")
    measure_limit: bool = for_tests(False)(
        "between parts of the run, measure bare env.step loops too, and compare the run with them"
    )
    limit_s: float = for_tests(1.0, is_time=True, metavar="S")(
        "with --measure-limit, seconds of each of the six measurements"
    )
    max_walltime: str | None = on_failure(None, metavar="TIME")(
        "stop before the run has taken this long, with all steps committed; written as SLURM does: 01:30:00"
    )
    on_rank_loss: str = on_failure("abort", choices=("abort", "shrink"))(
        "what to do when a rank is lost: abort ends the job; shrink goes on without its envs, and needs "
        "mpirun --with-ft ulfm"
    )
    start_timeout_s: float = on_failure(600.0, is_time=True, metavar="S")(
        "seconds that ranks wait for each other at the start; imports can take minutes where thousands of ranks "
        "share a file system"
    )
    expect_ranks: int | None = on_failure(None, least=1, metavar="N")("refuse to run on another number of ranks")
    progress: str = to_store(AUTO, choices=(AUTO, "bar", "lines", NONE))(
        "how to show the progress; auto is a bar on a terminal, else lines"
    )
    log_dir: str | None = to_store(None, metavar="DIR")(
        "folder for curves that TensorBoard shows while the run goes on: returns and lengths of episodes, env steps "
        "per second, shares of time; a run that is continued goes on in them (extra 'tensorboard')"
    )
    trace: str | None = to_store(None, metavar="FILE")(
        "file for a trace of what ranks do, for ui.perfetto.dev and chrome://tracing, written at the end; .json.gz is "
        "compressed"
    )
    trace_part: str = to_store(
        "0-7:0-999",
        metavar="RANKS:STEPS",
        form=("[0-9]+-[0-9]+:[0-9]+-[0-9]+", "must be like 0-7:0-999, first and last rank, got {}"),
    )("with --trace, which ranks and which steps, counted from the start of the run: 0-7:0-999")
    json: bool = to_store(False)("print the summary as one line of JSON")


def vectorization_of(mode: str, env: object) -> str:
    """Return the vectorization mode that "auto" stands for, or the one that was given."""
    if mode != AUTO:
        return mode
    is_own = isinstance(env, str) and env.rpartition(":")[2].startswith("mpi_rollout/")
    return "vector_entry_point" if is_own else "sync"
