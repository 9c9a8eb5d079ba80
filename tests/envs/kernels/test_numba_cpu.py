"""What only Numba's backend has: compiling, and its cache."""

import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

import pytest
from jobs import CLONE, job_environment

pytestmark = [pytest.mark.any_mpi, pytest.mark.skipif(find_spec("numba") is None, reason="pip install numba")]

PROGRAM = """
import sys
import numba
import mpi_rollout.envs.kernels
from mpi_rollout.envs.kernels.numba_cpu import compiled_kernel
kernel = compiled_kernel()
print('cached' if kernel.stats.cache_path else '', sum(kernel.stats.cache_hits.values()), len(kernel.signatures))
import gymnasium, numpy
envs = gymnasium.make_vec("mpi_rollout/CartPoleNumba-v0", 300, vectorization_mode="vector_entry_point")
print(float(envs.reset()[0][299, 3]), float(envs.step(numpy.ones(300, int))[0][299, 3]))
"""


def outcome(package: Path, **variables: str) -> list[str]:
    """The lines that the program prints, with the package in this folder."""
    environment = job_environment(**variables) | {"PYTHONPATH": str(package)}
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, cwd=package, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_one_of_two_processes_compiles_while_the_other_waits_and_again_when_the_dynamics_have_changed(tmp_path: Path):
    shutil.copytree(CLONE / "mpi_rollout", tmp_path / "mpi_rollout", ignore=shutil.ignore_patterns("__pycache__"))
    with ThreadPoolExecutor(2) as pool:
        runs = [pool.submit(outcome, tmp_path, NUMBA_CACHE_DIR=str(tmp_path / "cache")) for _ in range(2)]
    first, second = sorted(run.result() for run in runs)
    assert first[0] == "cached 0 1" and second[0] == "cached 1 1" and first[1] == second[1]
    dynamics = tmp_path / "mpi_rollout" / "envs" / "kernels" / "cartpole.py"
    dynamics.write_text(dynamics.read_text().replace("GRAVITY = 9.8", "GRAVITY = 1.6"))
    lines = outcome(tmp_path, NUMBA_CACHE_DIR=str(tmp_path / "cache"))
    assert lines[0] == "cached 0 1"
    before, after = first[1].split(), lines[1].split()
    assert before[0] == after[0] and before[1] != after[1]


@pytest.mark.parametrize("error", [OSError("no space left"), RuntimeError("no locator available"), RuntimeError("bad")])
def test_without_a_writable_cache_each_process_compiles(monkeypatch: pytest.MonkeyPatch, error: Exception):
    from mpi_rollout.envs.kernels import numba_cpu

    def njit(*_signature: object, cache: bool = False, **_options: object) -> Callable[[object], str]:
        if cache:
            raise error
        return lambda function: "compiled"

    monkeypatch.setattr(numba_cpu, "njit", njit)
    compile_again = numba_cpu.compiled_kernel.__wrapped__
    if "bad" in str(error):
        with pytest.raises(RuntimeError, match="bad"):
            compile_again()
    else:
        assert compile_again() == "compiled"
