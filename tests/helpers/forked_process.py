"""How a forked child runs a program as an interpreter of its own would, up to its end.

It does not free all objects one by one.  That takes longer than the fork, since the child would get its own copy of all
memory that it shares with its parent.
"""

import atexit
import ctypes
import gc
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress

MAPPED = "from mpi4py import rc; rc.initialize = False; import mpi4py.MPI; print(open('/proc/self/maps').read())"


def share_with_children() -> None:
    """Prepare what is imported for forks, which then take half the time that they would take else.

    The MPI library is mapped and relocated: children still import mpi4py and start MPI themselves.  What is there they
    do not look at for garbage; the program's own `gc.unfreeze` would have them, and copy all of it.
    """
    found = subprocess.run([sys.executable, "-c", MAPPED], capture_output=True, text=True)
    for library in set(re.findall(r"/.*/libmpi\.so.*", found.stdout)):
        ctypes.CDLL(library)
    gc.freeze()
    gc.unfreeze = lambda: None


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
