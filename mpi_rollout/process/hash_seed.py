"""The seed of Python's hashes of text, on which the order of a set depends.

Python draws it for each process, if the variable PYTHONHASHSEED does not give it.  An env that draws random numbers in
the order of a set would then give other data on each rank, and in each replay.

Like `start`, this module imports only what Python itself has at hand, and old Pythons can read it.
"""

import os
import sys

VARIABLE, FIXED, RANDOM = "PYTHONHASHSEED", "0", "random"
WARNING = (
    "PYTHONHASHSEED is random, or Python ignores it: an env that draws in the order of a set gives other data on each "
    "rank; export PYTHONHASHSEED=0, and leave out python -I, -E and -R"
)
PROGRAM = "mpi-rollout"  # As setup.cfg calls the script.


def fix() -> None:
    """Start this program again with a fixed seed, if it has none.  Call it first: it takes as long as Python's start.

    The process stays the same to its launcher.  A seed of the user stays, and so does `PYTHONHASHSEED=random`.  Nothing
    is done where the seed would not be heeded (`python -I`), and where another program than this one would start again.
    """
    words = getattr(sys, "orig_argv", [])[1:]
    if not sys.flags.hash_randomization or sys.flags.ignore_environment or os.environ.get(VARIABLE):
        return
    if not (words and sys.executable and _is_own_program()):
        return
    try:
        os.execve(sys.executable, [sys.executable, *words], {**os.environ, VARIABLE: FIXED})
    except OSError:  # `in_use` tells what that means.
        return


def _is_own_program() -> bool:
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    if spec is None:
        return os.path.basename(getattr(main, "__file__", "")) == PROGRAM
    return bool(spec.name == "mpi_rollout.__main__")


def in_use() -> str:
    """Return the seed with which this process was started: digits, or `random`."""
    if not sys.flags.hash_randomization:
        return FIXED
    given = "" if sys.flags.ignore_environment else _given()
    return given if given.isdigit() and int(given) else RANDOM


def _given() -> str:
    """Return the variable at the start of this process: many scripts set it later, which has no effect on them."""
    try:
        with open("/proc/self/environ", "rb") as file:
            pairs = [pair.partition(b"=") for pair in file.read().split(b"\0")]
    except OSError:
        return os.environ.get(VARIABLE, "")
    return next((value.decode(errors="replace") for name, _, value in pairs if name == VARIABLE.encode()), "")


def suspicion(then: str, now: str) -> str:
    """Say how the seed may be the cause of data that differ from those of `then`; "" if it cannot be.

    Without a word on it (`then` is empty) the data are of a version of this program that did not fix it.
    """
    then = then or RANDOM
    if then == now != RANDOM:
        return ""
    if then == RANDOM:
        way_out = f"collect or record with {VARIABLE}={FIXED} in the environment"
    else:
        way_out = f"export {VARIABLE}={then}"
    return f"{VARIABLE} {then} then, {now} now, so sets of text have another order: {way_out}"
