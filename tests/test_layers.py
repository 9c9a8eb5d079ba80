"""What each start loads.  The order of the folders is import-linter's, see setup.cfg."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from jobs import CLONE, Job, job_environment

pytestmark = pytest.mark.full_start

PACKAGE = CLONE / "mpi_rollout"


def imports(path: Path) -> set[str]:
    """Full names of the modules that a file imports anywhere, except for its types alone."""
    tree, modules = ast.parse(path.read_text()), set()
    for block in ast.walk(tree):
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING":
            block.body = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively"
            modules.add(node.module)
    return modules


def test_only_the_folder_of_messages_and_the_doctor_import_mpi4py():
    users = {path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py") if any(map(is_mpi4py, imports(path)))}
    assert {path.parts[0] for path in users} == {"exchange", "doctor"}


def is_mpi4py(module: str) -> bool:
    return module.partition(".")[0] == "mpi4py"


LOADED = "import sys; print([name for name in sys.modules if name.partition('.')[0] in {names}])"


def loaded_after(statements: str, *names: str) -> str:
    """The last line that a fresh Python prints: which of these packages the statements have loaded."""
    command = [sys.executable, "-c", f"{statements}\n{LOADED.format(names=set(names))}"]
    done = subprocess.run(command, env=job_environment(), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


@pytest.mark.parametrize(
    "statements",
    [
        "import mpi_rollout",
        "import mpi_rollout.cli",
        "from mpi_rollout.cli import main\ntry: main(['--help'])\nexcept SystemExit: pass",
        "from mpi_rollout.cli import main\ntry: main(['run', '--help'])\nexcept SystemExit: pass",
    ],
)
def test_what_needs_no_ranks_loads_no_mpi_and_no_hdf5(statements: str):
    assert loaded_after(statements, "mpi4py", "h5py") == "[]"


def test_inspect_loads_no_mpi(job: Job):
    path = job.collect(None, "--env", "CartPole-v1", "--num-envs", "2", "--num-steps", "5")
    assert loaded_after(
        f"from mpi_rollout.cli import main\nassert main(['inspect', {str(path)!r}]) == 0", "mpi4py"
    ) == ("[]")


def test_a_worker_rank_loads_neither_hdf5_nor_progress_bars_nor_figures(job: Job):
    result = job.script(
        2,
        "from mpi_rollout.cli import main\n"
        "from mpi_rollout.exchange.world import claimed_rank\n"
        "assert main(['--env', 'CartPole-v1', '--num-envs', '4', '--num-steps', '20', '--out', 'run.h5']) == 0\n"
        "if claimed_rank() == 1:\n    " + LOADED.format(names={"h5py", "tqdm", "matplotlib", "mpi4py"}),
    )
    assert result.code == 0, result.err
    printed = result.out.splitlines()[-1]
    assert "mpi4py" in printed and not any(name in printed for name in ("h5py", "tqdm", "matplotlib"))
