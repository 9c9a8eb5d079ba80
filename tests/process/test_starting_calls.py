"""What a rank asks of the file system at its start, and of the garbage collector."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from jobs import launcher, run_job

from mpi_rollout.exchange import world

RUN = "--env", "CartPole-v1", "--num-envs", "4", "--num-steps", "20", "--seed", "1", "--out", "run.h5"
BARE_ENV = "from mpi4py import MPI; import gymnasium; gymnasium.make('CartPole-v1').reset()"
COUNTED = (
    'if [ "${OMPI_COMM_WORLD_RANK:-$PMI_RANK}" = 1 ]; then exec strace -f -e %file,getdents64 -o "$0" "$@"; fi; "$@"'
)

needs_strace = pytest.mark.skipif(not shutil.which("strace"), reason="needs strace")


def calls_of_worker(folder: Path, *program: str, unset: tuple[str, ...] = ()) -> int:
    """How often rank 1 of two calls the file system by a name, or reads a folder.

    At its end, what looks for processes that it has left reads /proc; that does not count.
    """
    trace = folder / "trace"
    without = [word for name in unset for word in ("-u", name)]
    result = run_job(["env", *without, *launcher(2), "sh", "-c", COUNTED, str(trace), sys.executable, *program], folder)
    assert result.code == 0, result.err
    calls = trace.read_text()
    own, _, _ = calls.partition(f"\n{calls.split()[0]} +++ exited")
    return sum("(" in line for line in own.splitlines())


@pytest.mark.any_mpi
@pytest.mark.full_start
@needs_strace
def test_a_worker_hardly_calls_the_file_system_more_than_a_bare_program(tmp_path: Path):
    ours = calls_of_worker(tmp_path, "-m", "mpi_rollout", *RUN)
    assert ours - calls_of_worker(tmp_path, "-c", BARE_ENV) < 1200


@pytest.mark.full_start
@needs_strace
def test_a_worker_of_one_host_does_not_look_for_networks(tmp_path: Path):
    """Open MPI's search takes some 610 calls; MPICH has none."""
    ours = calls_of_worker(tmp_path, "-m", "mpi_rollout", *RUN, unset=tuple(world.ONE_HOST))
    assert ours - calls_of_worker(tmp_path, "-m", "mpi_rollout", *RUN) < 100


@pytest.mark.parametrize(("words", "is_expected"), [("--env X", True), ("inspect run.h5", False)])
def test_the_modules_of_a_run_are_not_looked_at_for_garbage(words: str, is_expected: bool):
    program = "import gc; from mpi_rollout.__main__ import _import; _import()\n"
    program += "print(gc.get_freeze_count() > 10_000, gc.isenabled())"
    result = subprocess.run([sys.executable, "-c", program, *words.split()], capture_output=True, text=True)
    assert result.stdout.split() == [str(is_expected), "True"], result.stderr
