"""How tests start the program: each MPI test is a job of its own under mpiexec, with a time limit.

This process never imports MPI.  A job that hangs is killed with all its processes and is a failed test.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy as np
import pytest

TESTS = Path(__file__).parent
TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Result:
    """What a job left: exit code, output, seconds until all of its processes had gone."""

    code: int
    out: str
    err: str
    seconds: float


def mpiexec() -> str:
    """The launcher beside this interpreter, or the system's."""
    beside = Path(sys.executable).parent / "mpiexec"
    found = str(beside) if beside.exists() else shutil.which("mpiexec")
    if found is None:
        pytest.skip("there is no mpiexec; make install, or load an MPI module")
    return found


def job_environment(**extra: str) -> dict[str, str]:
    environment = {**os.environ, "PYTHONPATH": f"{TESTS.parent}:{TESTS}", "PYTHONUNBUFFERED": "1"}
    if os.getuid() == 0:
        environment |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    environment["PRTE_MCA_rmaps_default_mapping_policy"] = ":oversubscribe"
    environment["OMPI_MCA_btl"] = "^ofi"
    return environment | extra


def run_job(command: list[str], cwd: Path, timeout: float = TIMEOUT_S, **extra: str) -> Result:
    """Run a command in a session of its own; fail the test if it takes longer than `timeout` seconds."""
    start = time.monotonic()
    job = subprocess.Popen(
        command, cwd=cwd, env=job_environment(**extra), stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        out, err = job.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        os.killpg(job.pid, signal.SIGKILL)
        out, err = job.communicate()
        pytest.fail(f"{' '.join(command)} did not end within {timeout} s\n{out}\n{err}")
    return Result(job.returncode, out, err, time.monotonic() - start)


class Job:
    """Starts the program on some ranks, in the test's own folder."""

    def __init__(self, folder: Path):
        self.folder = folder

    def command(self, num_ranks: int | None, *arguments: str) -> list[str]:
        """The command for `python -m mpi_rollout`; `num_ranks` None is without mpiexec."""
        launcher = [] if num_ranks is None else [mpiexec(), "-n", str(num_ranks)]
        return [*launcher, sys.executable, "-m", "mpi_rollout", *map(str, arguments)]

    def __call__(self, num_ranks: int | None, *arguments: str, timeout: float = TIMEOUT_S, **extra: str) -> Result:
        return run_job(self.command(num_ranks, *arguments), self.folder, timeout, **extra)

    def collect(self, num_ranks: int | None, *arguments: str, out: str = "run.h5", **extra: str) -> Path:
        """Run to a good end; return the path of the file."""
        result = self(num_ranks, *arguments, "--out", out, **extra)
        assert result.code == 0, result.err
        return self.folder / out

    def script(self, num_ranks: int, code: str, timeout: float = TIMEOUT_S, **extra: str) -> Result:
        """Run a Python program of the test's own on some ranks."""
        path = self.folder / "program.py"
        path.write_text(code)
        return run_job([mpiexec(), "-n", str(num_ranks), sys.executable, str(path)], self.folder, timeout, **extra)


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


def datasets(path: Path) -> dict[str, np.ndarray]:
    """All data that must not depend on ranks: /trajectories and /episodes."""
    found: dict[str, np.ndarray] = {}
    with h5py.File(path) as file:
        file["trajectories"].visititems(
            lambda name, item: found.update({name: item[...]}) if isinstance(item, h5py.Dataset) else None
        )
        found["/episodes"] = file["episodes"][...]
    return found


def assert_same_bytes(first: dict[str, np.ndarray], second: dict[str, np.ndarray]) -> None:
    assert first.keys() == second.keys()
    for name in first:
        assert first[name].dtype == second[name].dtype and first[name].shape == second[name].shape, name
        assert first[name].tobytes() == second[name].tobytes(), f"{name} differs"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """`@pytest.mark.mpi(1, 2, 3)` runs a test that takes `num_ranks` once for each."""
    mark = metafunc.definition.get_closest_marker("mpi")
    if mark is not None and mark.args and "num_ranks" in metafunc.fixturenames:
        metafunc.parametrize("num_ranks", mark.args)
