"""What only Numba's backend has: compiling, and its cache."""

import shutil
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

import pytest
from jobs import CLONE, job_environment

pytestmark = [pytest.mark.any_mpi, pytest.mark.skipif(find_spec("numba") is None, reason="pip install numba")]

PROGRAM = """
import sys
import numba
import mpi_rollout.envs.kernels
mpi_rollout.envs.kernels.prepare()
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
    done = subprocess.run(command, cwd=package, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_second_process_loads_what_the_first_has_compiled_unless_the_dynamics_have_changed(tmp_path: Path):
    copy_of_package(tmp_path)
    first, second = (outcome(tmp_path, NUMBA_CACHE_DIR=str(tmp_path / "cache")) for _ in range(2))
    assert first[0] == "cached 0 1" and second[0] == "cached 1 1" and first[1] == second[1]
    dynamics = tmp_path / "mpi_rollout" / "envs" / "kernels" / "single.py"
    dynamics.write_text(dynamics.read_text().replace("GRAVITY = 9.8", "GRAVITY = 1.6"))
    lines = outcome(tmp_path, NUMBA_CACHE_DIR=str(tmp_path / "cache"))
    assert lines[0] == "cached 0 1"
    before, after = first[1].split(), lines[1].split()
    assert before[0] == after[0] and before[1] != after[1]


def copy_of_package(folder: Path) -> None:
    shutil.copytree(CLONE / "mpi_rollout", folder / "mpi_rollout", ignore=shutil.ignore_patterns("__pycache__"))


def test_without_a_writable_cache_each_process_compiles(tmp_path: Path):
    copy_of_package(tmp_path)
    no_folder = tmp_path / "file"
    no_folder.touch()
    blocked = {"HOME": str(no_folder), "XDG_CACHE_HOME": str(no_folder)}
    kernels = tmp_path / "mpi_rollout" / "envs" / "kernels"
    (kernels / "__pycache__").touch()  # A folder cannot be made in its place, not even by root.
    assert outcome(tmp_path, **blocked)[0] == " 0 1"


def test_a_process_that_is_stopped_while_it_compiles_does_not_hold_up_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    from mpi_rollout.envs.kernels import numba_cpu

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(numba_cpu, "LONGEST_COMPILING_S", 0.1)
    with numba_cpu._first_compiles("kernel"):
        [marker] = tmp_path.iterdir()
        with numba_cpu._first_compiles("kernel"):
            assert not marker.stat().st_size
    assert marker.stat().st_size
