"""Fixtures that all tests share.  How jobs are started is in `helpers/jobs.py`."""

import compileall
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import hypothesis
import numpy as np
import pytest
from jobs import CLONE, HELPERS, QUICK, WHOLE, Job, datasets, forked_python, processes_in

from mpi_rollout.process import console, hash_seed
from mpi_rollout.storage import sandbox

pytest_plugins = ["submissions"]
# The same examples in each run, on a machine of any speed; nothing is left in the folder of the clone.
hypothesis.settings.register_profile("same", deadline=None, database=None, derandomize=True)
hypothesis.settings.load_profile("same")
LONGEST_FIRST = (  # Else the last of them runs alone, while the other processes have nothing to do.
    "test_readme.py",
    "runs/test_crashes.py",
    "runs/test_crashes_continued.py",
    "runs/test_crashes_torn.py",
    "runs/test_failing_writes.py",
    "runs/test_shards.py",
    "runs/test_resume.py",
    "runs/test_rank_faults.py",
    "runs/test_native_slices.py",
    "exchange/test_surviving.py",
    "runs/test_mpi_envs.py",
    "runs/test_num_episodes.py",
    "storage/test_manifest.py",
    "runs/test_first_env.py",
    "train/test_recording.py",
    "collect/test_collector.py",
    "train/test_modes.py",
    "test_examples.py",
    "studies/test_scaling.py",
    "test_sb3.py",
)
NEEDS_SLURM = CLONE / "tests" / "slurm" / "cluster"


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out what needs a SLURM; `make slurm-test` asks for it by name."""
    is_left_out = collection_path == NEEDS_SLURM and not any("slurm/cluster" in argument for argument in config.args)
    return is_left_out or None


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--quick", action="store_true", help="skip each test that would start a job")


def pytest_configure(config: pytest.Config) -> None:
    """Heed the signals that a shell has its background jobs ignore: tests send them, and their jobs inherit that."""
    if config.getoption("quick"):
        os.environ[QUICK] = "1"
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # torch's threads wait for each other by spinning.
    config.option.loadscopereorder = False  # pytest-xdist would begin with the files that have most tests.
    for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files that take longest, in this order."""
    missing = [name for name in LONGEST_FIRST if not (CLONE / "tests" / name).exists()]
    if missing:
        raise pytest.UsageError(f"LONGEST_FIRST in tests/conftest.py names files that do not exist: {missing}")
    order = {CLONE / "tests" / name: place for place, name in enumerate(LONGEST_FIRST)}
    items.sort(key=lambda item: order.get(item.path, len(order)))


@pytest.fixture(autouse=True)
def fixed_hash_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let runs in this process say nothing of the seed of its hashes, which it got from whoever started it."""
    monkeypatch.setattr(hash_seed, "in_use", lambda: hash_seed.FIXED)


@pytest.fixture(scope="session", autouse=True)
def bytecode() -> None:
    """Compile program and tests before the jobs, which write none: each process would compile them all again."""
    for folder in (CLONE / "mpi_rollout", HELPERS):
        compileall.compile_dir(folder, quiet=2)


@pytest.fixture(autouse=True)
def streams_of_its_own() -> Iterator[None]:
    """A command that a test runs in this process keeps copies of stdout and stderr; the next test has its own."""
    yield
    while console._held:
        _, output = console._held.popitem()
        if isinstance(output, int):
            os.close(output)


@pytest.fixture(autouse=True)
def sandboxes_that_fork(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that reads a file for a test is a fork, as one for a test's job: see `forking_ranks.fork_sandboxes`."""
    if QUICK in os.environ or request.node.get_closest_marker("full_start"):
        return
    popen = lambda command, **options: subprocess.Popen([*forked_python(), *command[1:]], **options)  # noqa: E731
    monkeypatch.setattr(sandbox, "subprocess", SimpleNamespace(**vars(subprocess) | {"Popen": popen}))


@pytest.fixture
def job(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Job]:
    marks = [request.node.get_closest_marker(name) for name in ("full_start", "imports")]
    yield Job(tmp_path, forks=marks[0] is None, libraries=marks[1].args if marks[1] else ())
    for pid in processes_in(tmp_path):  # What a failed test has left behind.
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, np.ndarray]:
    """What a run of six `envs.Image` gives that nothing stops."""
    job = Job(tmp_path_factory.mktemp("whole"))
    arguments = ("--env-factory", "envs:Image", "--num-envs", "6", "--num-steps", str(WHOLE), "--progress", "none")
    return datasets(job.collect(None, *arguments))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """`@pytest.mark.mpi(1, 2, 3)` runs a test that takes `num_ranks` once for each."""
    mark = metafunc.definition.get_closest_marker("mpi")
    if mark is not None and mark.args and "num_ranks" in metafunc.fixturenames:
        metafunc.parametrize("num_ranks", mark.args)
