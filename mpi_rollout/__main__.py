"""`python -m mpi_rollout`, and the script `mpi-rollout`."""

import gc
import sys

from mpi_rollout.process import hash_seed, leftovers
from mpi_rollout.process import start as beginning

ELSEWHERE = {"-h", "--help", "--version", "--dry-run"}  # Options of `run` that start no MPI.


def start() -> int:
    """Run the command line as a program of its own; return its exit code."""
    hash_seed.fix()
    beginning.end_with_launcher()
    beginning.heed_signals()
    beginning.check_python()
    leftovers.end_leftovers()
    is_imported = False
    try:
        _import()
        is_imported = True
        return _run()
    except Exception as error:
        words = beginning.shadowing(error)
        if not words and not is_imported:  # Python's own way out would wait for ranks that have started MPI.
            sys.excepthook(type(error), error, error.__traceback__)
            _start_mpi()
            words = f"cannot import what it needs, see above: {type(error).__name__}"
        if words:
            beginning.leave(beginning.WRONG_LAUNCH, words)
        raise


def _start_mpi() -> None:
    """Start MPI, if it can be, where there are other ranks: a launcher may miss the end of a rank while they do so."""
    from mpi_rollout.exchange.world import START_S, claimed_size, start_mpi_on_all_ranks

    try:
        if claimed_size()[0] > 1:  # On a login node it may end the process.
            start_mpi_on_all_ranks(START_S)
    except Exception:  # mpi4py is what cannot be imported.
        return


def _import() -> None:
    """Import what the command needs."""
    beginning.check_packages()
    gc.disable()  # Modules stay.
    if _is_run(sys.argv[1:]):
        _load_run()
        gc.freeze()  # To look for garbage in them, at the end above all, took a quarter of a rank's start.
    gc.enable()


def _is_run(arguments: list[str]) -> bool:
    """Tell whether these words of a command line begin a run over MPI."""
    is_named = arguments[:1] in ([], ["run"]) or arguments[0].startswith("-")
    return is_named and not ELSEWHERE & {*arguments}


def _load_run() -> None:
    import mpi_rollout.cli
    import mpi_rollout.collect.run  # noqa: F401


def _run() -> int:
    from mpi_rollout.cli import main  # Slow.
    from mpi_rollout.exchange.job_end import finalize
    from mpi_rollout.process.console import divert_stdout

    code = main()
    if "--json" in sys.argv:
        divert_stdout()  # The JSON does not contain what envs print when they end.
    finalize()  # All ranks are here; what an env does at the interpreter's end is of no concern to the others.
    return code


if __name__ == "__main__":
    sys.exit(start())
