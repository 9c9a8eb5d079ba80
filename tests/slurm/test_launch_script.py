"""slurm/launch.sh: which launcher it takes for which MPI, on sites that this machine is none of; and study.sh."""

import subprocess
from pathlib import Path

import pytest
from jobs import CLONE

pytestmark = pytest.mark.any_mpi

SCRIPTS = CLONE / "slurm"


def bash(code: str, config: str = "") -> str:
    """The last line of such code, after launch.sh, where `scontrol show config` prints `config`."""
    before = f"scripts={SCRIPTS}; script=test; source {SCRIPTS}/launch.sh; num_ranks=2; cpus_per_rank=1"
    program = f"{before}; scontrol() {{ echo '{config}'; }}\n{code}"
    done = subprocess.run(["bash", "-c", program], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


@pytest.mark.parametrize(
    ("vendor", "library", "default", "works", "start"),
    [
        ("Open MPI", "Open MPI v5", "pmix_v4", "srun", "srun --mpi=pmix_v4 "),
        ("Open MPI", "Open MPI v5", "none", "srun", "srun --mpi=pmix "),
        ("MPICH", "MPICH Version: 4", "pmix", "srun --mpi=pmi2", "srun --mpi=pmi2 "),
        ("MPICH", "CRAY MPICH version 8", "none", "srun", "srun --mpi=cray_shasta "),
        ("MPICH", "CRAY MPICH version 8", "(null)", "srun --mpi=pmi2", "srun --mpi=pmi2 "),
        ("MPICH", "MPICH Version: 4", "none", "none of them", "/opt/mpi/bin/mpiexec "),
    ],
)
def test_the_sites_plugin_is_taken_if_it_works_and_else_that_of_the_mpi(vendor, library, default, works, start):
    """Whether one works is for the tests with a SLURM."""
    known = f"vendor='{vendor}' library='{library}' mpiexec=/opt/mpi/bin/mpiexec"
    stub = f"starts_ranks() {{ case ${{start[*]}} in '{works}'*) ;; *) return 1 ;; esac; }}"
    assert bash(f'{known}\n{stub}\nchoose_launcher\necho "${{start[*]}}"', f"MpiDefault = {default}").startswith(start)


def test_intel_mpi_is_given_slurms_own_library(tmp_path: Path):
    (tmp_path / "libpmi2.so").touch()
    code = 'vendor=MPICH library="Intel(R) MPI Library 2021" mpiexec=-; starts_ranks() { :; }; choose_launcher'
    config = f"PluginDir = {tmp_path}/slurm:/other"
    assert bash(f'{code}; echo "$I_MPI_PMI_LIBRARY"', config) == f"{tmp_path}/libpmi2.so"
    assert bash(f'export I_MPI_PMI_LIBRARY=mine; {code}; echo "$I_MPI_PMI_LIBRARY"', config) == "mine"


def test_a_study_without_matplotlib_ends_well_and_says_that_it_has_no_picture():
    """In the cluster's tests all environments have matplotlib.  `false` is a Python that cannot draw."""
    draw = f"source {SCRIPTS}/study.sh; draw study.h5 2>&1"
    assert bash(f"PYTHON=true; {draw}; echo ended") == "ended"
    said = "there is no picture of study.h5, see above; python -m mpi_rollout plot study.h5 draws it elsewhere"
    assert bash(f"PYTHON=false; {draw}").endswith(said)
