"""`python -m mpi_rollout`, and the script `mpi-rollout`."""

import sys

from mpi_rollout.process import start as beginning


def start() -> int:
    """Run the command line as a program of its own; return its exit code."""
    beginning.heed_signals()
    beginning.check_python()
    try:
        return _run()
    except Exception as error:
        words = beginning.shadowing(error)
        if words:
            beginning.leave(beginning.WRONG_LAUNCH, words)
        raise


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
