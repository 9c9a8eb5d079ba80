"""What a job said last is told so that its first line says why it failed."""

import pytest

from mpi_rollout.exchange.waiting import CROWDED
from mpi_rollout.studies.jobs import tail

MPIRUN = "-" * 74 + "\nThere are not enough slots available\nin the system.\n" + "-" * 74 + "\n"
TRACEBACK = """Traceback (most recent call last):
  File "mysim/solver.py", line 210, in step
    raise ValueError("diverged")
ValueError: diverged
"""


@pytest.mark.parametrize(
    ("told", "first"),
    [
        ("", ""),
        (MPIRUN, ": There are not enough slots available"),
        (MPIRUN + TRACEBACK, ": ValueError: diverged"),
        (TRACEBACK + MPIRUN, ": ValueError: diverged"),
        (MPIRUN.replace("slots", "slots\0"), ": There are not enough slots available"),  # As Open MPI's says it.
        ("srun: cluster configuration lacks support for cpu binding\nsrun: no room", ": srun: no room"),
        (f"mpi_rollout: 20 {CROWDED}\nmpi_rollout: no licence", ": no licence"),
        (TRACEBACK + "\nDuring handling of it:\n\n" + TRACEBACK.replace("Value", "Key"), ": KeyError: diverged"),
        ("Traceback (most recent call last):\n  File", ": Traceback (most recent call last):"),  # Ended meanwhile.
        (TRACEBACK + "mpi_rollout: rank 1: no licence\n" + MPIRUN, ": rank 1: no licence"),
    ],
)
def test_the_first_line_says_what_happened(told: str, first: str):
    assert tail(told).partition("\n")[0] == first


def test_the_rest_is_kept():
    told = tail("importing\n" + MPIRUN + TRACEBACK)
    assert "\nimporting\n" in told and "solver.py" in told and "in the system." in told and "---" not in told


def test_of_much_the_end_is_kept_and_the_error_comes_first():
    told = tail(TRACEBACK + "bye\n" * 10_000)
    assert told.startswith(": ValueError: diverged\n") and told.endswith("bye") and len(told) < 3000
