"""The options of jobs, and what is told of one that failed."""

import fcntl
import importlib.util
import os
import re
import sys
from pathlib import Path

import pytest
from jobs import Job

from mpi_rollout.errors import UsageError
from mpi_rollout.exchange.waiting import CROWDED
from mpi_rollout.studies.commands import numbers
from mpi_rollout.studies.jobs import JobOptions, check_scipy, claimed, job_folder, run_job, tail
from mpi_rollout.text import pip_install

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


def test_what_a_job_leaves_in_its_folder_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Also the folder of a set of shards."""
    program = "import pathlib; pathlib.Path('run.h5.shards').mkdir(); print('{\"complete\": true}')"
    monkeypatch.chdir(tmp_path)
    assert run_job([sys.executable, "-c", program], tmp_path, 60.0) == {"complete": True}
    assert not [*tmp_path.iterdir()]


def test_a_study_without_its_packages_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    check_scipy()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=f"^studies need scipy; {re.escape(pip_install('[studies]'))}$"):
        check_scipy()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"repeats": 0}, "repeats must be at least 1, got 0"),
        ({"order_seed": -1}, "order_seed must be at least 0, got -1"),
        ({"timeout_s": 0.0}, "timeout_s must be more than 0 s and at most 1e+06, got 0.0"),
        ({"launcher": "srun 'x"}, '--launcher "srun \'x": No closing quotation'),
    ],
)
def test_job_options_that_cannot_be_are_refused(options, words):
    with pytest.raises(UsageError) as refusal:
        JobOptions(**options)
    assert str(refusal.value) == words


def test_a_list_of_numbers_is_ascending_and_each_is_in_it_once():
    assert numbers("--ranks", "numbers of ranks", "1,2", "4,1,4,2") == (1, 2, 4)
    for text, words in (("1,x", "such as 1,2, got '1,x'"), ("0,1", "such as 1,2, got '0,1'"), ("2147483648", "up to")):
        with pytest.raises(UsageError, match=f"^--ranks must be numbers of ranks {words}"):
            numbers("--ranks", "numbers of ranks", "1,2", text)


@pytest.mark.full_start
def test_reading_a_command_line_loads_no_scipy(job: Job):
    code = (
        "import sys\nfrom mpi_rollout.cli import main\n"
        "for command in ['--help'], ['scaling', 'strong', '--help'], ['tune', '--help']:\n"
        "    try: main(command)\n    except SystemExit: pass\n"
        "print(sorted({name.partition('.')[0] for name in sys.modules} & {'scipy', 'h5py', 'matplotlib'}))"
    )
    done = job.script(None, code)
    assert done.out.splitlines()[-1] == "[]"


# The folder of a study's jobs: in it nothing is of another study.


@pytest.fixture
def out(tmp_path: Path) -> str:
    return str(tmp_path / "study.json")


def leave_behind(out: str) -> Path:
    """What a study that was killed leaves."""
    folder = job_folder(out)
    (folder / "minari").mkdir(parents=True)
    (folder / "minari" / "data.hdf5").write_text("old")
    (folder / "1.h5.part").write_text("old")
    return folder


def test_what_was_left_behind_is_gone_before_and_all_is_gone_after(out: str):
    leave_behind(out)
    with claimed(out) as folder:
        assert folder.is_dir() and not list(folder.iterdir())
    assert not folder.exists()


def test_who_is_refused_removes_nothing_of_who_is_there(out: str):
    folder = leave_behind(out)
    descriptor = os.open(folder, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    with pytest.raises(UsageError, match="another process does this study"), claimed(out):
        pass
    assert len(list(folder.iterdir())) == 2
    os.close(descriptor)


def test_without_locks_nothing_is_removed_that_may_be_of_who_is_there(out: str, monkeypatch: pytest.MonkeyPatch):
    leave_behind(out)
    monkeypatch.setattr(fcntl, "flock", unsupported)
    with claimed(out) as folder:
        assert len(list(folder.iterdir())) == 2


def unsupported(_descriptor: int, _operation: int) -> None:
    raise OSError("no locks available")
