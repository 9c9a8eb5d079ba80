"""`python -m mpi_rollout`, and the script `mpi-rollout`."""

import sys

from mpi_rollout.process import start as beginning


def start() -> int:
    """Run the command line as a program of its own; return its exit code."""
    beginning.end_with_launcher()
    beginning.heed_signals()
    beginning.check_python()
    try:
        _import()
        return _run()
    except Exception as error:
        words = beginning.shadowing(error)
        if words:
            beginning.leave(beginning.WRONG_LAUNCH, words)
        raise


def _import() -> None:
    """Import what the command needs; of many ranks the first one does it for all."""
    from mpi_rollout.exchange import modules

    are_sent = modules.are_sent(sys.argv[1:])
    if not are_sent or beginning.claimed_rank() == 0:
        beginning.check_packages()
    if are_sent:
        modules.send(_load_run, sys.argv[1:])
        beginning.check_packages()  # Of ranks that go without.


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
