"""Modules that rank 0 imports for all ranks."""

import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import h5py
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec, registry
from jobs import PYTHON_PATH, Job, launcher, mpiexec, run_job

from mpi_rollout.errors import LaunchError
from mpi_rollout.exchange import job_end, modules, world

RUN = "--env", "CartPole-v1", "--num-envs", "4", "--num-steps", "20", "--seed", "1"
BARE = "from mpi4py import MPI"
BARE_ENV = f"{BARE}; import gymnasium; gymnasium.make('CartPole-v1').reset()"
OPEN_MPI_AT_MOST = 1200  # MPICH looks for processors instead, in /sys.
COUNTED = (
    'if [ "${OMPI_COMM_WORLD_RANK:-$PMI_RANK}" = 1 ]; then exec strace -f -e %file,getdents64 -o "$0" "$@"; fi; "$@"'
)


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
@pytest.mark.skipif(not shutil.which("strace"), reason="needs strace")
@pytest.mark.parametrize(("sends", "bare", "most"), [("yes", BARE, 450), ("no", BARE_ENV, 1200)])
def test_a_worker_hardly_calls_the_file_system_more_than_a_bare_program(tmp_path: Path, sends, bare, most):
    """Of sent modules more than MPI alone; of others more than MPI and the env alone."""
    ours = calls_of_worker(tmp_path, "-m", "mpi_rollout", *RUN, "--out", "run.h5", "--send-imports", sends)
    assert ours - calls_of_worker(tmp_path, "-c", bare) < most


@pytest.mark.full_start
@pytest.mark.skipif(not shutil.which("strace"), reason="needs strace")
def test_a_worker_of_one_host_does_not_look_for_networks(tmp_path: Path):
    program = "-m", "mpi_rollout", *RUN, "--out", "run.h5", "--send-imports", "yes"
    assert calls_of_worker(tmp_path, *program, unset=tuple(world.ONE_HOST)) < OPEN_MPI_AT_MOST


@pytest.mark.full_start
@pytest.mark.mpi(2)
def test_sent_modules_give_the_same_data(job: Job, num_ranks: int):
    stored = []
    for sends in ("yes", "no"):
        with h5py.File(job.collect(num_ranks, *RUN, "--send-imports", sends, out=f"{sends}.h5")) as file:
            stored.append(file["trajectories/observations"][:])
    np.testing.assert_array_equal(*stored)


@pytest.mark.any_mpi
@pytest.mark.full_start
def test_a_rank_with_another_path_imports_by_itself(tmp_path: Path):
    program = [sys.executable, "-m", "mpi_rollout", *RUN, "--out", "run.h5", "--send-imports", "yes"]
    other = ["sh", "-c", 'PYTHONPATH=$0 exec "$@"', f"{PYTHON_PATH}:{tmp_path}/elsewhere"]
    result = run_job([mpiexec(), "-n", "1", *program, ":", "-n", "1", *other, *program], tmp_path)
    assert result.code == 0, result.err


@pytest.mark.any_mpi
@pytest.mark.full_start
@pytest.mark.parametrize(("words", "code"), [(("--num-envs", "x"), 64), (("--env", "None-v1"), 64)])
def test_what_is_refused_when_modules_were_sent_is_said_once(job: Job, words, code):
    result = job(3, *RUN, *words, "--out", "run.h5", "--send-imports", "yes")
    assert result.code == code and len(result.messages) == 1, result.err


@pytest.mark.parametrize(("words", "is_expected"), [("--env X", True), ("inspect run.h5", False)])
def test_the_modules_of_a_run_are_not_looked_at_for_garbage(words: str, is_expected: bool):
    program = "import gc; from mpi_rollout.__main__ import _import; _import()\n"
    program += "print(gc.get_freeze_count() > 10_000, gc.isenabled())"
    result = subprocess.run([sys.executable, "-c", program, *words.split()], capture_output=True, text=True)
    assert result.stdout.split() == [str(is_expected), "True"], result.stderr


@pytest.mark.parametrize("env", ["CartPole-v1", "LunarLander-v3", "phys2d/CartPole-v1", "None-v1", "module:Env-v0", ""])
def test_an_env_that_cannot_be_imported_for_all_ranks_is_refused_later(env: str):
    modules._load_env(env)
    assert ("gymnasium.envs.classic_control.cartpole" in sys.modules) or env != "CartPole-v1"


def test_an_env_of_others_is_not_imported_before_its_threads_are_limited(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(registry, "Turtle-v0", EnvSpec("Turtle-v0", "turtledemo.clock:Clock"))
    modules._load_env("Turtle-v0")
    assert "turtledemo" not in sys.modules


@pytest.mark.parametrize(
    ("words", "is_expected"),
    [
        ("", True),
        ("run --env X", True),
        ("--env X", True),
        ("--env X --dry-run", False),
        ("--help", False),
        ("inspect run.h5", False),
        ("--env X --send-imports no", False),
        ("--send-imports=yes --env X --send-imports=no", False),
    ],
)
def test_modules_are_sent_to_the_ranks_of_a_run(monkeypatch: pytest.MonkeyPatch, words: str, is_expected: bool):
    monkeypatch.setattr(modules, "claimed_size", lambda: (modules.LEAST_RANKS, "SIZE"))
    assert modules.are_sent(words.split()) == is_expected


def test_few_ranks_import_side_by_side(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(modules, "claimed_size", lambda: (modules.LEAST_RANKS - 1, "SIZE"))
    assert not modules.are_sent(["--env", "X"])
    assert modules.are_sent(["--env", "X", "--send-imports", "yes"])


def test_ranks_do_not_wait_for_ever_for_the_root(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture):
    def abort(comm: object, code: int) -> None:
        raise SystemExit(code)

    monkeypatch.setattr(job_end, "abort", abort)
    request, comm = SimpleNamespace(Test=lambda: False), SimpleNamespace(rank=1)
    with pytest.raises(SystemExit, match=str(LaunchError.exit_code)):
        modules._await(request, comm, 0.01)
    said = "rank 0 has not imported the program within 0.01 s; give it more time by --start-timeout-s\n"
    assert capfd.readouterr().err.endswith(said)
