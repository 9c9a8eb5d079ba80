"""The command lines of studies: `scaling`, `tune`, `compare`.  A command loads what it needs when it is called."""

import argparse
from functools import partial
from typing import TYPE_CHECKING

from mpi_rollout.bench.compare.systems import NAMES
from mpi_rollout.bench.plan import ENV_FIGURES, MOST_CHECKED, JobOptions, Options, numbers
from mpi_rollout.config import AUTO, ENV_OPTIONS, INFERENCES, flag
from mpi_rollout.core.host import num_usable_cores
from mpi_rollout.errors import UsageError
from mpi_rollout.options import Commands, add_run_options, path

if TYPE_CHECKING:
    from mpi_rollout.bench.scaling.simulation import Envs, Simulation

# The options of a run that a study takes from its user; the others are the study's own affair.
SCALING_OPTIONS = (
    *("env", "env_factory", "env_kwargs", "num_steps", "seed", "policy", "vectorization_mode", "mode", "num_groups"),
    *("trajectories", "wait", "limit_s", "actions", "strict_dtypes", "inference"),
)
TUNE_OPTIONS = (
    *("env", "env_factory", "env_kwargs", "num_envs", "seed", "policy", "trajectories", "wait", "actions"),
    "strict_dtypes",
)
SIM_RANKS = ",".join(str(2**power) for power in range(15))
PROBE = "1,3,4,6,8,16,32"
CONSTANTS = {  # Of the model, see `model.Constants`.
    "root_s": "the root's seconds for an exchange, whatever its size",
    "root_s_per_env": "the root's for each env",
    "root_s_per_rank": "the root's for each other rank",
    "alpha_s": "a level of the tree of messages, there and back",
    "beta_s_per_byte": "a byte that the root sends or receives",
    "policy_s": "a call of the policy",
    "policy_s_per_env": "each row of a batch of the policy",
}
COMPARED_ENVS = "CartPole-v1,Acrobot-v1"


def add_job_options(
    parser: argparse._ActionsContainer, repeats: int, repeated: str, timeout_s: float, limited: str, dry_run: str
) -> None:
    """Add the options that all studies have, see `JobOptions`.

    `repeated`, `limited` and `dry_run` are the help texts of --repeats, --timeout-s and --dry-run.
    """
    parser.add_argument("--repeats", type=int, default=repeats, metavar="N", help=f"{repeated} (default: {repeats})")
    parser.add_argument(
        "--order-seed", type=int, default=0, metavar="SEED", help="seed of the order of the jobs (default: 0)"
    )
    parser.add_argument(
        "--timeout-s", type=float, default=timeout_s, metavar="S", help=f"{limited} (default: {timeout_s:g})"
    )
    launcher = "command that starts the ranks, up to -n, such as 'srun --mpi=pmix' (default: mpirun)"
    parser.add_argument("--launcher", type=str.strip, default="", metavar="COMMAND", help=launcher)
    parser.add_argument("--dry-run", action="store_true", help=dry_run)


LIMITED = "seconds that a job, or an env measured by itself, may take; a longer one fails"


def _ranks_of(option: str, example: str, text: str) -> tuple[int, ...]:
    """Read numbers of ranks, to which 1 is added."""
    return tuple(sorted({1, *numbers(option, "numbers of ranks", example, text)}))


ranks_list = partial(_ranks_of, "--ranks", "1,2,4,8")


def lengths_list(text: str) -> tuple[str, ...]:
    """Read lengths of fragments, numbers or auto."""
    counted = ",".join(word for word in text.split(",") if word != AUTO)
    steps = () if text == AUTO else numbers("--fragment-length", "numbers of steps, or auto,", "1,16,auto", counted)
    return (*map(str, steps), *[AUTO] * (AUTO in text))


def add_scaling(commands: Commands) -> None:
    """Add `scaling strong` and `weak`, with their own options and those of a run; `gather`, and `sim`."""
    scaling = commands.add_parser("scaling", help="measure how much faster more ranks are; starts mpirun by itself")
    kinds = scaling.add_subparsers(required=True, metavar="strong|weak|gather|sim")
    _add_kind(kinds, "strong", "--num-envs", "over all ranks, the same on any number of ranks")
    _add_kind(kinds, "weak", "--envs-per-rank", "on each rank")
    gather = kinds.add_parser("gather", help="put together a study that was done with --only; show the results")
    gather.add_argument("out", metavar="FILE", help="file of the study; its parts are in FILE.parts")
    gather.set_defaults(command=gather_command)
    _add_sim(kinds)


def _add_kind(kinds: Commands, kind: str, size: str, where: str) -> None:
    parser = kinds.add_parser(kind, help=f"{size}: envs {where}")
    add = parser.add_argument
    ranks = "numbers of ranks; 1 is always among them, because the base case is measured there (default: 1,2,4,8)"
    add("--ranks", type=ranks_list, default="1,2,4,8", help=ranks)
    repeated, dry_run = "number of jobs of each number of ranks", "print the commands of what is left, start none"
    add_job_options(parser, 5, repeated, 600.0, LIMITED, dry_run)
    add(size, dest="size", type=int, default=64, metavar="N", help=f"envs {where} (default: 64)")
    lengths = "steps between two exchanges; a curve for each (default: auto, as for `run`)"
    add("--fragment-length", type=lengths_list, default=AUTO, metavar="L,...", help=lengths)
    out = f"file of the study; an interrupted study is continued (default: results/{kind}.h5)"
    add("--out", type=path, default=f"results/{kind}.h5", metavar="FILE", help=out)
    only = (
        "do only the jobs of R ranks, for example in a batch job of their own; they go to FILE.parts; "
        "`scaling gather FILE` puts them together"
    )
    add("--only", type=int, metavar="R", help=only)
    add("--json", action="store_true", help="with --dry-run: print what is left as one line of JSON")
    add("--redo-failed", action="store_true", help="do failed jobs again; by default they stay failed")
    add_run_options(parser, SCALING_OPTIONS)
    parser.set_defaults(command=scaling_command, kind=kind)


def scaling_command(options: argparse.Namespace) -> int:
    """Measure a study."""
    from mpi_rollout.bench.scaling.runner import Task, measure, show_plan
    from mpi_rollout.bench.scaling.study import Study

    run = {name: getattr(options, name) for name in SCALING_OPTIONS}
    study = Study(options.kind, options.ranks, options.size, run, JobOptions.read(options), options.fragment_length)
    task = Task(study, options.out, options.only, options.redo_failed)
    if options.dry_run:
        return show_plan(task, options.json)
    if options.json:
        raise UsageError("--json is for --dry-run; the results are in the file of the study")
    return measure(task)


def gather_command(options: argparse.Namespace) -> int:
    """Put the parts of a study together."""
    from mpi_rollout.bench.scaling.runner import gather

    return gather(options.out)


def _add_sim(kinds: Commands) -> None:
    parser = kinds.add_parser("sim", help="compute the speed of more ranks than this machine has")
    ranks = f"numbers of ranks to compute for (default: {SIM_RANKS})"
    parser.add_argument("--ranks", type=ranks_list, default=SIM_RANKS, help=ranks)
    parser.add_argument("--envs-per-rank", type=int, default=4, metavar="N", help="envs on each rank (default: 4)")
    out = "file of the simulation; an interrupted one is continued (default: results/sim.h5)"
    parser.add_argument("--out", type=path, default="results/sim.h5", metavar="FILE", help=out)
    _add_envs(parser)
    _add_constants(parser)
    _add_sim_jobs(parser)
    parser.set_defaults(command=sim_command)


def _add_envs(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("envs", "give figures of an env, or a real env, which is measured")
    for name, kind, metavar, text in (
        ("step_s", float, "S", "seconds of one env's step"),
        ("step_spread_s", float, "S", "standard deviation of --env-step-s; all wait for the slowest (default: 0)"),
        ("observation_bytes", int, "N", "bytes of one observation (default: 64)"),
        ("action_bytes", int, "N", "bytes of one action (default: 8)"),
    ):
        group.add_argument(ENV_FIGURES[name], type=kind, dest=name, metavar=metavar, help=text)
    fragments = partial(numbers, "--fragment-length", "numbers of steps", "16,128")
    text = "steps between two exchanges; a curve for each, beside lockstep (default: 32)"
    group.add_argument("--fragment-length", type=fragments, default="32", metavar="L,...", help=text)
    text = "who chooses the actions of fragments (default: workers, as a run does with many ranks)"
    group.add_argument("--inference", choices=INFERENCES[1:], default="workers", help=text)
    add_run_options(group, ENV_OPTIONS)


def _add_constants(parser: argparse.ArgumentParser) -> None:
    text = "a few short jobs measure them on this machine, unless they come from a study or are given here"
    group = parser.add_argument_group("constants", text)
    text = "fit the constants to this study of `scaling weak` or `strong`"
    group.add_argument("--constants", metavar="FILE", help=text)
    for name, text in CONSTANTS.items():
        group.add_argument(flag(name), type=float, metavar="S", help=text + "; what is not given is 0")


def _add_sim_jobs(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("jobs", "their envs sleep; mpirun starts them, in random order")
    text = f"numbers of ranks that measure the constants (default: {PROBE})"
    group.add_argument("--probe", type=partial(_ranks_of, "--probe", "1,4,16,64"), metavar="RANKS", help=text)
    text = (
        f"numbers of ranks, up to {MOST_CHECKED}, at which the model is compared with real jobs; the largest is in no "
        "fit if it is larger than all of --probe"
    )
    check = partial(_ranks_of, "--check", "1,4,16,64")
    group.add_argument("--check", type=check, default=(), metavar="RANKS", help=text)
    add_job_options(group, 3, "number of jobs of each kind", 600.0, LIMITED, "print the commands, start none")


def question_of(options: argparse.Namespace) -> "Simulation":
    """Return the question that a command line puts; UsageError if no question can have such a value."""
    from mpi_rollout.bench.scaling.simulation import GIVEN, MEASURED, Simulation

    given = {name: getattr(options, name) for name in CONSTANTS if getattr(options, name) is not None}
    if given and options.constants is not None:
        raise UsageError(f"give constants by --constants or one by one, got both: {flag(next(iter(given)))} too")
    constants_from = options.constants or (GIVEN if given else MEASURED)
    if constants_from != MEASURED and options.probe is not None:
        raise UsageError("--probe measures constants, which are given or from a study here; leave it out, or these")
    envs, env = _envs_of(options)
    return Simulation(
        num_ranks=options.ranks,
        envs_per_rank=options.envs_per_rank,
        envs=envs,
        env=env,
        fragment_lengths=options.fragment_length,
        constants_from=constants_from,
        given=given,
        probe=(options.probe or _ranks_of("--probe", PROBE, PROBE)) if constants_from == MEASURED else (),
        check=options.check,
        jobs=JobOptions.read(options),
        inference=options.inference,
    )


def _envs_of(options: argparse.Namespace) -> tuple["Envs | None", Options]:
    """Return figures of envs, and options of a real one; one of the two is empty, or the question is refused."""
    from mpi_rollout.bench.scaling.simulation import Envs

    given = {name: getattr(options, name) for name in ENV_FIGURES if getattr(options, name) is not None}
    has_env = options.env is not None or options.env_factory is not None
    env = {name: getattr(options, name) for name in ENV_OPTIONS} if has_env else {}
    if options.env_kwargs and not has_env:
        raise UsageError("--env-kwargs are those of --env or --env-factory, got neither; add one, or leave them out")
    if "step_s" in given:
        return Envs(**given), env
    if has_env and given:
        name = ENV_FIGURES[next(iter(given))]
        raise UsageError(f"{name} goes with --env-step-s; a real env is measured, so leave it out")
    return None, env


def sim_command(options: argparse.Namespace) -> int:
    """Simulate."""
    from mpi_rollout.bench.scaling.simulation_runner import simulate

    return simulate(question_of(options), options.out)


def add_tune(commands: Commands) -> None:
    """Add the command `tune`."""
    text = "find the ranks and the mode that suit an env on this machine; starts mpirun by itself"
    parser = commands.add_parser("tune", help=text)
    text = "numbers of ranks to try, at most as many as envs (default: 1, 2, 4, ... and all cores of this machine)"
    parser.add_argument("--ranks", type=ranks_list, default=(), help=text)
    parser.add_argument("--trial-s", type=float, default=3.0, help="seconds of steps in a job (default: 3)")
    dry_run = "measure the env by itself, print the jobs, start none"
    add_job_options(parser, 5, "number of jobs of each candidate", 300.0, LIMITED, dry_run)
    add_run_options(parser, TUNE_OPTIONS)
    parser.set_defaults(command=tune_command)


def tune_command(options: argparse.Namespace) -> int:
    """Tune."""
    from mpi_rollout.bench.tune.runner import Tuning, tune

    run = {name: getattr(options, name) for name in TUNE_OPTIONS}
    return tune(Tuning(run, options.ranks, options.trial_s, JobOptions.read(options)))


def add_compare(commands: Commands) -> None:
    """Add the command `compare`."""
    text = "measure this program beside the vector envs that people use; starts mpirun by itself"
    parser = commands.add_parser("compare", help=text)
    sizes = "1,2,4,8,16,64,256"
    for name, default, metavar, text in (
        ("--env", COMPARED_ENVS, "IDS", f"ids of envs as gymnasium.make takes them (default: {COMPARED_ENVS})"),
        ("--num-envs", sizes, "NS", f"numbers of envs, with commas (default: {sizes})"),
        ("--native-num-envs", "", "NS", "more numbers of envs, for the bare loop and envs in another form alone"),
        ("--systems", "", "NAMES", f"systems to measure, with commas, of {NAMES} (R of --ranks; default: all)"),
        ("--ranks", "", "RS", "numbers of ranks of this program, with commas (default: 1 and all cores)"),
    ):
        parser.add_argument(name, default=default, metavar=metavar, help=text)
    text = "another Python, which has the package that some systems need: tianshou=venv/bin/python; may be repeated"
    parser.add_argument("--python", action="append", default=[], metavar="PACKAGE=PYTHON", help=text)
    text = "length of one turn in seconds (default: 0.25)"
    parser.add_argument("--window-s", type=float, default=0.25, metavar="S", help=text)
    out = "file of the comparison; an interrupted one is continued (default: results/compare.h5)"
    parser.add_argument("--out", type=path, default="results/compare.h5", metavar="FILE", help=out)
    repeated, dry_run = "number of turns of each system at each point", "say what would be measured and for how long"
    limited = "seconds of a set-up or turn; a system that takes longer has failed"
    add_job_options(parser, 5, repeated, 120.0, limited, dry_run)
    parser.set_defaults(command=compare_command)


def compare_command(options: argparse.Namespace) -> int:
    """Compare."""
    from mpi_rollout.bench.compare.comparison import Comparison
    from mpi_rollout.bench.compare.runner import compare
    from mpi_rollout.bench.compare.systems import systems_of

    num_cores = num_usable_cores()
    ranks = numbers("--ranks", "numbers of ranks", "1,2,4", options.ranks or f"1,{num_cores}")
    envs, systems = _names(options.env), _names(options.systems)
    if not envs:
        raise UsageError(f"--env must be env ids such as {COMPARED_ENVS}, got {options.env!r}")
    if options.systems and not systems:
        raise UsageError(f"--systems must be names such as mpi-1,sync, got {options.systems!r}; leave it out for all")
    num_envs = numbers("--num-envs", "numbers of envs", "1,16,64", options.num_envs)
    native = options.native_num_envs
    comparison = Comparison(
        envs=envs,
        num_envs=num_envs,
        systems=systems or tuple(systems_of(ranks, num_cores)),
        ranks=ranks,
        num_cores=num_cores,
        window_s=options.window_s,
        pythons=tuple(options.python),
        native_num_envs=numbers("--native-num-envs", "numbers of envs", "1024,16384", native) if native else (),
        jobs=JobOptions.read(options),
    )
    return compare(comparison, options.out)


def _names(text: str) -> tuple[str, ...]:
    """Read names such as a,b: each once, in their order."""
    return tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
