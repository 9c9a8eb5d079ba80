"""The command line of `compare`."""

import argparse

from mpi_rollout.config import ENV_OPTIONS
from mpi_rollout.core.host import num_usable_cores
from mpi_rollout.errors import UsageError
from mpi_rollout.options import Commands, add_run_options, check_seconds
from mpi_rollout.studies.compare.systems import NAMES, Setup, System, systems_of
from mpi_rollout.studies.plan import JobOptions, check_least, check_packages


def add_compare(commands: Commands) -> None:
    """Add the command `compare`."""
    text = "find the fastest vector env for an env on this machine; starts mpirun by itself"
    parser = commands.add_parser("compare", help=text)
    add, text = parser.add_argument, "number of ranks of this program (default: one for each core that may be used)"
    add("--systems", default="", metavar="NAMES", help=f"systems to measure, with commas, of {NAMES} (default: all)")
    add("--ranks", type=int, metavar="R", help=text)
    add("--window-s", type=float, default=1.0, metavar="S", help="length of one turn in seconds (default: 1)")
    add("--json", action="store_true", help="print machine and all samples as one line of JSON")
    add("--repeats", type=int, default=5, metavar="N", help="number of turns of each system (default: 5)")
    text = "seconds that a turn may take with all that comes before it; what takes longer has failed (default: 120)"
    add("--timeout-s", type=float, default=120.0, metavar="S", help=text)
    text = "command that starts the ranks, up to -n, such as 'srun --mpi=pmix' (default: mpirun)"
    add("--launcher", type=str.strip, default="", metavar="COMMAND", help=text)
    add("--dry-run", action="store_true", help="say what would be measured")
    add_run_options(parser, (*ENV_OPTIONS, "num_envs"))
    parser.set_defaults(command=compare_command)


def compare_command(options: argparse.Namespace) -> int:
    """Compare."""
    from mpi_rollout.studies.compare.comparison import compare

    num_cores = num_usable_cores()
    num_ranks = num_cores if options.ranks is None else options.ranks
    check_least("--ranks", num_ranks, 1)
    check_seconds("--window-s", options.window_s)
    check_packages()
    systems = chosen(options.systems, systems_of(num_ranks, num_cores))
    setup = Setup({name: getattr(options, name) for name in ENV_OPTIONS}, options.num_envs, num_cores)
    setup.make(0).close()  # What is wrong of the env is said once, and at once.
    jobs = JobOptions(options.repeats, 0, options.launcher, options.timeout_s, options.dry_run)
    return compare(setup, systems, jobs, options.window_s, options.json)


def chosen(text: str, systems: list[System]) -> list[System]:
    """Return the systems that are named, and the bare loop, which they are compared with."""
    names = [part.strip() for part in text.split(",") if part.strip()]
    if unknown := [name for name in names if name not in {system.name for system in systems}]:
        raise UsageError(f"--systems: there is no {', '.join(unknown)}; there are {NAMES}")
    return [system for system in systems if not names or system.name in (*names, "bare")]
