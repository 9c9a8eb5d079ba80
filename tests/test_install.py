"""An editable install is found from anywhere: also from the folder that holds the clone, named as the package."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from jobs import CLONE

from mpi_rollout.text import pip_install

pytestmark = pytest.mark.any_mpi

BUILD = "import sys; from setuptools.build_meta import build_editable; print(build_editable(sys.argv[1]))"
IMPORT = "import site, sys; site.addsitedir(sys.argv[1]); import mpi_rollout; print(mpi_rollout.__file__)"


def python(*arguments: str, cwd: Path) -> str:
    """The last line of what a Python prints that has no environment variables."""
    done = subprocess.run([sys.executable, *arguments], cwd=cwd, env={}, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


def test_the_clone_does_not_hide_the_package(tmp_path: Path):
    pytest.importorskip("setuptools", "70.1")  # Older ones need another package to build wheels.
    clone, site = tmp_path / "mpi_rollout", tmp_path / "site"
    (clone / "mpi_rollout").mkdir(parents=True)
    (clone / "mpi_rollout" / "__init__.py").write_text('__version__ = "1"\n')
    for name in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(CLONE / name, clone)
    wheel = python("-c", BUILD, str(tmp_path), cwd=clone)
    zipfile.ZipFile(tmp_path / wheel).extractall(site)
    [scripts] = site.glob("*.dist-info/entry_points.txt")
    assert "mpi-rollout = mpi_rollout.__main__:start" in scripts.read_text()
    # -S: without the install that this Python has.
    assert python("-S", "-c", IMPORT, str(site), cwd=tmp_path) == str(clone / "mpi_rollout" / "__init__.py")


def test_messages_name_the_sources_where_the_program_runs_from_them_and_else_the_package(tmp_path: Path):
    assert pip_install("gymnax six") == "pip install gymnax six"
    show = (
        "import sys; sys.path.insert(0, sys.argv[1]); from mpi_rollout import text; print(text.pip_install('[video]'))"
    )
    folder = tmp_path / "a clone"
    shutil.copytree(CLONE / "mpi_rollout", folder / "mpi_rollout", ignore=shutil.ignore_patterns("__pycache__"))
    assert python("-c", show, str(folder), cwd=tmp_path) == "pip install 'mpi_rollout[video]'"
    shutil.copy(CLONE / "pyproject.toml", folder)
    assert python("-c", show, str(folder), cwd=tmp_path) == f"pip install -e '{folder}[video]'"
