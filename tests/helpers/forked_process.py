"""How a forked child runs a program as an interpreter of its own would, up to its end.

It does not free all objects one by one.  That takes longer than the fork, since the child would get its own copy of all
memory that it shares with its parent.
"""

import atexit
import sys
import threading
from collections.abc import Callable
from contextlib import suppress


def end_mpi() -> None:
    """Do what mpi4py does at the interpreter's end."""
    from mpi4py import MPI, rc

    if MPI.Is_initialized() and not MPI.Is_finalized() and rc.finalize is not False:
        MPI.Finalize()


def exit_code(run: Callable[[], None]) -> int:
    """Run a program in a child; return the code with which an interpreter would end, after what it does then."""
    code: object = 0
    try:
        run()
    except SystemExit as error:
        code = error.code
    except BaseException:
        code = 1
        sys.excepthook(*sys.exc_info())
    if not isinstance(code, int | None):
        print(code, file=sys.stderr)
    threading._shutdown()
    atexit._run_exitfuncs()
    if "mpi4py.MPI" in sys.modules:
        end_mpi()
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):  # Some programs leave something else there.
            stream.flush()
    return code if isinstance(code, int) else code is not None
