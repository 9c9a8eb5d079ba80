"""The order of the modules, and what each start loads."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import TESTS, Job, job_environment

PACKAGE = TESTS.parent / "mpi_rollout"
LAYERS = """
errors console bounds
deadline cores partition layout seeding timing infos actions config options sizes status interrupts parent guard
exits ending temporary loading parser
masks policy
lone mpi agreement waiting messages changing shrink exchange destination
envs.advice envs.masks envs.outputs envs.inputs envs.time_limits envs.faults envs.members envs.loop envs.restoring
envs.bare envs.timed envs watchdog slices worker driver turns vector_env assembly session connection sb3
examples.train_ppo
limit tally collector losses catchup
storage.child storage.lock storage.naming storage.paths
storage.unmarked storage.objects storage.contents storage.checksum storage.filters storage.values
storage.schema storage.reader storage.episodes storage.chunks storage.past
storage.verification
storage.output storage.writer storage.opening storage
storage.recovery
terminal progress report root run
plots inspection listing consent replay durability
doctor.findings doctor.probe doctor.launch doctor.rank doctor.ranks doctor.world
doctor.folder doctor.leftovers doctor.local doctor
scaling.tables scaling.study scaling.machine scaling.jobs scaling.workplace scaling.samples scaling.file
scaling.statistics scaling.analysis scaling.report scaling.figures scaling.parts scaling.runner
scaling.model scaling.sleeping scaling.env_probe
scaling.sim.question scaling.sim.constants scaling.sim.file scaling.sim.fitting scaling.sim.analysis
scaling.sim.report scaling.sim.figures scaling.sim.runner scaling.sim.options scaling.sim scaling.options scaling
compare.systems compare.pool compare.steppers compare.makers compare.recording compare.process compare.processes
compare.comparison compare.samples compare.facts compare.file compare.analysis compare.report compare.figures
compare.estimate compare.runner compare compare.command
tune.candidates tune.trials tune.report tune.runner tune.options tune
cli __main__
"""
ORDER = LAYERS.split()
FILES = {
    ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__"): path
    for path in PACKAGE.rglob("*.py")
    if path.parent not in (PACKAGE, PACKAGE / "examples") or path.name != "__init__.py"
}


def imports(path: Path) -> set[str]:
    """Full names of the modules that a file imports anywhere."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively"
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            modules = {name for name in names if name.removeprefix("mpi_rollout.") in FILES}
            found |= modules if modules == names else modules | {node.module}
    return found


def test_every_module_has_its_place_in_the_order():
    assert sorted(FILES) == sorted(ORDER)


@pytest.mark.parametrize("module", ORDER)
def test_a_module_imports_only_from_modules_before_its_own(module: str):
    ours = {name.partition(".")[2] for name in imports(FILES[module]) if name.partition(".")[0] == "mpi_rollout"}
    assert ours - {""} <= set(ORDER[: ORDER.index(module)])


def test_only_modules_that_send_messages_import_mpi4py():
    users = {module for module in FILES if any(name.startswith("mpi4py") for name in imports(FILES[module]))}
    assert users == {"mpi", "messages", "shrink", "exchange", "doctor.world"}


LOADED = "import sys; print([name for name in sys.modules if name.partition('.')[0] in {names}])"


def loaded_after(statements: str, *names: str) -> str:
    """The last line that a fresh Python prints: which of these packages the statements have loaded."""
    command = [sys.executable, "-c", f"{statements}\n{LOADED.format(names=set(names))}"]
    done = subprocess.run(command, env=job_environment(), capture_output=True, text=True, timeout=60)
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
        "from mpi_rollout.exchange.mpi import claimed_rank\n"
        "assert main(['--env', 'CartPole-v1', '--num-envs', '4', '--num-steps', '20', '--out', 'run.h5']) == 0\n"
        "if claimed_rank() == 1:\n    " + LOADED.format(names={"h5py", "tqdm", "matplotlib", "mpi4py"}),
    )
    assert result.code == 0, result.err
    printed = result.out.splitlines()[-1]
    assert "mpi4py" in printed and not any(name in printed for name in ("h5py", "tqdm", "matplotlib"))
