"""deploy/: containers, conda, EasyBuild, and jobs of PBS and LSF, as far as they can be tried without these.

`make try-install` runs the commands of own-mpi.def, and installs the wheel by them.
"""

import configparser
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from jobs import CLONE, Result, mpiexec, run_job

DEPLOY = CLONE / "deploy"
SECTIONS = {"files", "post", "environment", "runscript", "test"}
FOUR_ENVS = "--env CartPole-v1 --num-envs 4 --num-steps 100 --policy stopping_envs:binary"


def sections(recipe: Path) -> dict[str, str]:
    """The sections of an Apptainer definition by name; "" is its header."""
    parts = re.split(r"^%(\w+)\n", recipe.read_text(), flags=re.MULTILINE)
    return dict(zip(["", *parts[1::2]], parts[::2], strict=True))


@pytest.mark.any_mpi
@pytest.mark.parametrize("name", ["own-mpi.def", "host-mpi.def"])
def test_a_definition_has_its_header_and_sections_of_shell_code(name: str):
    found = sections(DEPLOY / name)
    header = re.sub(r"^#.*\n", "", found.pop(""), flags=re.MULTILINE).split()
    assert header == ["Bootstrap:", "docker", "From:", "python:3.13-slim"] and set(found) == SECTIONS
    assert found.pop("files").split() == ["dist/*.whl", "/opt/"]
    for text in found.values():
        assert subprocess.run(["bash", "-n"], input=text, text=True, capture_output=True).stderr == ""


@pytest.mark.any_mpi
def test_recipes_name_what_the_package_requires():
    setup = configparser.ConfigParser()
    setup.read(CLONE / "setup.cfg")
    required = [line.replace(" >= ", " >=") for line in setup["options"]["install_requires"].split("\n") if line]
    listed = re.findall(r"^  - (.+)$", (DEPLOY / "environment.yml").read_text(), re.MULTILINE)
    assert sorted(listed[2:]) == sorted(["python >=3.11", "pip", "openmpi", *required, "pip:"])
    recipe = next(DEPLOY.glob("*.eb"))
    values: dict[str, object] = {}
    exec(compile(recipe.read_text(), recipe, "exec"), values)  # A recipe is Python.
    assert recipe.stem == f"{values['name']}-{values['version']}-foss-2025b" and values["name"] == "mpi_rollout"
    named = {each[0] for key in ("dependencies", "exts_list") for each in values[key]} | {"numpy"}  # Of SciPy-bundle.
    assert {each.split()[0] for each in required} <= named
    version = re.search(r'^__version__ = "(.+)"$', (CLONE / "mpi_rollout/__init__.py").read_text(), re.MULTILINE)
    assert version is not None and values["version"] == version[1]


def job_script(name: str, folder: Path) -> Path:
    """A copy of a job's script in `folder`, with a run of the tests; its home has the virtual environment."""
    activate = folder / "mpi_rollout/.venv-system/bin/activate"
    activate.parent.mkdir(parents=True)
    activate.write_text(f"PATH={Path(sys.executable).parent}:{Path(mpiexec()).parent}:$PATH\n")
    text, count = re.subn(r"^options=.*$", f"options=({FOUR_ENVS})", (DEPLOY / name).read_text(), flags=re.MULTILINE)
    assert count == 1
    (folder / name).write_text(text)
    (folder / "hosts").write_text("localhost\n" * 2)
    stub = folder / "bin/qsub"
    stub.parent.mkdir()
    stub.write_text('#!/bin/sh\necho "$@" >> resubmitted\n')
    stub.chmod(0o755)
    return folder / name


def run_script(script: Path, stop_at: str = "") -> tuple[Result, str]:
    """Run a job's script as its scheduler does; return also what it submitted."""
    folder = str(script.parent)
    of_pbs = {"PBS_O_WORKDIR": folder, "PBS_NODEFILE": f"{folder}/hosts", "PBS_JOBNAME": "collect"}
    of_lsf = {"LS_SUBCWD": folder, "LSB_DJOB_HOSTFILE": f"{folder}/hosts", "LSB_DJOB_NUMPROC": "2"}
    path = f"{folder}/bin:{os.environ['PATH']}"
    spooled = shutil.copy(script, script.parent / "spooled")
    result = run_job(["bash", spooled], Path("/"), PATH=path, HOME=folder, STOP_AT=stop_at, **of_pbs, **of_lsf)
    submitted = script.parent / "resubmitted"
    return result, submitted.read_text() if submitted.exists() else ""


@pytest.mark.any_mpi
@pytest.mark.mpi(2)
@pytest.mark.parametrize("name", ["collect.pbs", "collect.lsf"])
def test_a_job_goes_on_until_the_run_is_complete_unless_it_gets_no_further(name: str, tmp_path: Path):
    script = job_script(name, tmp_path)
    again = f"{script}\n" if name == "collect.pbs" else ""  # LSF puts a job with 75 back into the queue by itself.
    stopped, submitted = run_script(script, "usr1:50")
    assert (stopped.code, submitted) == (75, again), stopped.err
    text = script.read_text()
    script.write_text(text.replace("walltime=03:55:00", "walltime=00:00:01"))  # Which is over when the run begins.
    nothing_done, submitted = run_script(script)
    script.write_text(text)
    assert (nothing_done.code, submitted) == (70, again), nothing_done.err
    assert nothing_done.err.splitlines()[-1].startswith("this start got nothing done; ")
    complete, submitted = run_script(script)
    assert (complete.code, submitted) == (0, again), complete.err
    assert "on 2 ranks" in complete.out and (tmp_path / "results/collect.h5").exists()
