"""The command line of `scaling sim`."""

import argparse
from functools import partial
from typing import Any

from mpi_rollout.bench.scaling.sim.question import (
    CONSTANT_NAMES,
    FIGURES,
    GIVEN,
    MEASURED,
    MOST_CHECKED,
    Envs,
    Simulation,
)
from mpi_rollout.config import flag
from mpi_rollout.errors import UsageError
from mpi_rollout.options import add_job_options, add_run_options, numbers, path, ranks_list

RANKS = ",".join(str(2**power) for power in range(15))
PROBE = "1,3,4,6,8,16,32"
ENV_OPTIONS = ("env", "env_factory", "env_kwargs")
HELP = {
    "root_s": "the root's seconds for an exchange, whatever its size",
    "root_s_per_rank": "the root's for each other rank",
    "root_s_per_env": "the root's for each env",
    "alpha_s": "a level of the tree of messages, there and back",
    "beta_s_per_byte": "a byte that the root sends or receives",
    "policy_s": "a call of the policy",
    "policy_s_per_env": "each row of a batch of the policy",
}


def add_sim(kinds: Any) -> None:
    """Add `scaling sim` to the kinds of `scaling`."""
    parser = kinds.add_parser("sim", help="compute the speed of more ranks than this machine has")
    parser.add_argument(
        "--ranks", type=ranks_list, default=RANKS, help=f"numbers of ranks to compute for (default: {RANKS})"
    )
    parser.add_argument("--envs-per-rank", type=int, default=4, metavar="N", help="envs on each rank (default: 4)")
    parser.add_argument("--out", type=path, default="results/sim.h5", metavar="FILE", help="file of the simulation; if "
                        "it was interrupted there, it is continued (default: results/sim.h5)")  # fmt: skip
    _add_envs(parser)
    _add_constants(parser)
    _add_jobs(parser)
    parser.set_defaults(command=sim_command)


def _add_envs(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("envs", "give figures of an env, or a real env, which is measured")
    group.add_argument("--env-step-s", type=float, dest="step_s", metavar="S", help="seconds of one env's step")
    group.add_argument("--env-step-spread-s", type=float, dest="step_spread_s", metavar="S",
                       help="standard deviation of --env-step-s; all wait for the slowest (default: 0)")  # fmt: skip
    group.add_argument("--obs-bytes", type=int, dest="observation_bytes", metavar="N",
                       help="bytes of one observation (default: 64)")  # fmt: skip
    group.add_argument(
        "--action-bytes", type=int, dest="action_bytes", metavar="N", help="bytes of one action (default: 8)"
    )
    group.add_argument("--fragment-length", type=_fragments, default="32", metavar="L,...",
                       help="steps between two exchanges where the policy is on the workers; a curve for each "
                       "(default: 32)")  # fmt: skip
    add_run_options(group, ENV_OPTIONS)


_fragments = partial(numbers, "--fragment-length", "numbers of steps", "16,128")


def _add_constants(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "constants", "a few short jobs measure them on this machine, unless they come from a study or are given here"
    )
    group.add_argument(
        "--constants", metavar="FILE", help="fit the constants to this study of `scaling weak` or `strong`"
    )
    for name in CONSTANT_NAMES:
        group.add_argument(flag(name), type=float, metavar="S", help=HELP[name] + "; what is not given is 0")


def _add_jobs(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("jobs", "their envs sleep; mpirun starts them, in random order")
    group.add_argument("--probe", type=partial(_some_ranks, "--probe"), metavar="RANKS",
                       help=f"numbers of ranks that measure the constants (default: {PROBE})")  # fmt: skip
    group.add_argument("--check", type=partial(_some_ranks, "--check"), default=(), metavar="RANKS",
                       help=f"numbers of ranks, up to {MOST_CHECKED}, at which the model is compared with real jobs; "
                       "the largest is in no fit if it is larger than all of --probe")  # fmt: skip
    add_job_options(group, "kind", 3, 600.0, "print the commands of the jobs, start none")


def _some_ranks(option: str, text: str) -> tuple[int, ...]:
    return tuple(sorted({1, *numbers(option, "numbers of ranks", "1,4,16,64", text)}))


def question_of(options: argparse.Namespace) -> Simulation:
    """The question that a command line puts.

    Raises
    ------
    UsageError
        A value that no question can have.
    """
    given = {name: getattr(options, name) for name in CONSTANT_NAMES if getattr(options, name) is not None}
    if given and options.constants is not None:
        raise UsageError(f"give constants by --constants or one by one, got both: {flag(next(iter(given)))} too")
    constants_from = options.constants or (GIVEN if given else MEASURED)
    if constants_from != MEASURED and options.probe is not None:
        raise UsageError("--probe measures constants, which are given or from a study here; leave it out, or these")
    probe = (options.probe or _some_ranks("--probe", PROBE)) if constants_from == MEASURED else ()
    return Simulation(
        options.ranks, options.envs_per_rank, *_envs_of(options), options.fragment_length, constants_from, given,
        probe, options.check, options.repeats, options.order_seed, options.launcher.strip(),
    )  # fmt: skip


def _envs_of(options: argparse.Namespace) -> tuple[Envs | None, dict[str, Any]]:
    """Figures of envs, and options of a real one; one of the two is empty, or the question is refused."""
    given = {name: getattr(options, name) for name in FIGURES if getattr(options, name) is not None}
    has_env = options.env is not None or options.env_factory is not None
    env = {name: getattr(options, name) for name in ENV_OPTIONS} if has_env else {}
    if options.env_kwargs and not has_env:
        raise UsageError("--env-kwargs are those of --env or --env-factory, got neither; add one, or leave them out")
    if "step_s" in given:
        return Envs(**given), env
    if has_env and given:
        name = FIGURES[next(iter(given))]
        raise UsageError(f"{name} goes with --env-step-s; a real env is measured, so leave it out")
    return None, env


def sim_command(options: argparse.Namespace) -> int:
    """Answer."""
    from mpi_rollout.bench.scaling.sim.runner import simulate  # h5py is not for --help.

    return simulate(question_of(options), options.out, options.timeout_s, options.dry_run)
