"""How tests start the program: each MPI test is a job of its own under mpiexec, with a time limit.

This process never imports MPI.  A job that hangs is killed with all its processes and is a failed test.
"""

import atexit
import os
import pickle
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from mpi_rollout.storage.untrusted import open_unmarked

HELPERS = Path(__file__).parent
CLONE = HELPERS.parents[1]
PYTHON_PATH = f"{CLONE}:{HELPERS}"
PYTHON = sys.executable  # In whose place a test may put another program.
TIMEOUT_S = 300.0  # Other jobs share the cores, and the machine with others.
GONE_S = 30.0
QUICK = "MPI_ROLLOUT_TESTS_START_NOTHING"  # In the environment: a test that starts a job is skipped.
CHEAP_STARTS = {  # Each rank spends a quarter less before its first line; no data and no message depend on it.
    "OMPI_MCA_pml": "ob1",  # Do not look for networks' own protocols: all ranks are on this machine.
    "OMPI_MCA_btl": "self,sm",
    "OMPI_MCA_mpi_yield_when_idle": "1",  # Several jobs share the cores: a rank that waits lets others run.
    "OMP_NUM_THREADS": "1",  # Or numpy starts a thread on every core, and torch as many to share small sums.
}
LAUNCHER_FAILED = "The PMIx server's listener thread failed to start."
AT_START = {  # Variables that are read when a process starts, or imports a library.
    "LD_LIBRARY_PATH",
    "LD_PRELOAD",
    "HDF5_PLUGIN_PATH",
    "OMP_NUM_THREADS",
    "PYTHONHASHSEED",
    "PYTHONPATH",
}
LEARNING = ("stable_baselines3", "torch._dynamo")  # torch imports the second when the first optimizer is made.
WHOLE = 1000  # Steps of the run with which those that are stopped are compared.


@dataclass(frozen=True)
class Result:
    """What a job left: exit code, output, seconds until all of its processes had gone."""

    code: int
    out: str
    err: str
    seconds: float

    @property
    def messages(self) -> list[str]:
        """What the program says on stderr: one message each, no tracebacks.

        Left out is how far it is, what it takes, and that env 0 shows something else in each episode, as those of
        many tests do: they count their episodes.
        """
        lines = [line for line in self.err.splitlines() if line.startswith("mpi_rollout: ")]
        usual = " env steps/s, ", " free there)", "env 0 does not repeat its episodes", "mpi_rollout: loading "
        others = [line for line in lines if not any(words in line for words in usual)]
        return [line.removeprefix("mpi_rollout: ") for line in others]

    @property
    def num_tracebacks(self) -> int:
        return self.err.count("Traceback (most recent call last)")


def mpiexec() -> str:
    """The launcher beside this interpreter, or the system's."""
    beside = Path(sys.executable).parent / "mpiexec"
    found = str(beside) if beside.exists() else shutil.which("mpiexec")
    if found is None:
        pytest.skip("there is no mpiexec; make install, or load an MPI module")
    return found


@cache
def is_hydra() -> bool:
    """The launcher is MPICH's."""
    return "HYDRA" in subprocess.run([mpiexec(), "--version"], capture_output=True, text=True).stdout


@cache
def ranks_may_fork() -> bool:
    """Hydra's ranks inherit an open file, and mpi4py before 4.1 looks for the library when it is imported."""
    release = tuple(map(int, metadata.version("mpi4py").split(".")[:2]))
    return release >= (4, 1) and not is_hydra()


def job_environment(**extra: str) -> dict[str, str]:
    """The variables with which tests start processes of the program; skip the test where it must start none."""
    if QUICK in os.environ:
        pytest.skip("starts a process, which --quick leaves out")
    environment = {
        **CHEAP_STARTS,
        **os.environ,
        "PYTHONPATH": PYTHON_PATH,
        "PYTHONUNBUFFERED": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    if os.getuid() == 0:
        environment |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    environment["PRTE_MCA_prte_tmpdir_base"] = str(swept_sessions())
    environment["OMPI_MCA_btl_sm_backing_directory"] = str(shared_memory())
    environment["PRTE_MCA_rmaps_default_mapping_policy"] = ":oversubscribe"
    environment["PYTHONHASHSEED"] = "0"  # Else each start is one of two.
    environment["MPI_ROLLOUT_ANY_SIZE"] = "1"  # Many runs are asked for steps without end, and stopped.
    return environment | extra


@cache
def sessions() -> Path:
    """Where Open MPI's launchers have their session folders, `ompi.PID`."""
    folder = Path(tempfile.mkdtemp(prefix="sessions-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@cache
def shared_memory() -> Path:
    """Where Open MPI's ranks have their shared memory, of this process's jobs alone.

    Open MPI names it by 16 bits that follow from the launcher's process id, and killed ranks leave it.  Of the jobs of
    several test processes, two with the same name would take each other's: a rank of each crashes then.
    """
    folder = Path(tempfile.mkdtemp(prefix="tests-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def swept_sessions() -> Path:
    """That folder without those of killed launchers: the next one with the same process id would not start."""
    for each in sessions().glob("ompi.*"):
        if not Path("/proc", each.suffix[1:]).exists():
            shutil.rmtree(each, ignore_errors=True)
    return sessions()


class Running:
    """A job under way, in a session of its own."""

    def __init__(self, command: list[str], cwd: Path, **extra: str):
        self.command, self.folder, self._extra, self._num_starts = command, cwd, extra, 0
        self._begin()

    def _begin(self) -> None:
        self._num_starts += 1
        self._start = time.monotonic()
        self._process = subprocess.Popen(
            self.command, cwd=self.folder, env=job_environment(**self._extra), stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        self.pid = self._process.pid

    def _begins_again(self, said: str) -> bool:
        """Start the job a second time if the launcher has failed before it: in some thousand starts PMIx does once."""
        is_launchers_fault = LAUNCHER_FAILED in said and self._num_starts == 1
        if is_launchers_fault:
            self._begin()
        return is_launchers_fault

    def finish(self, timeout: float = TIMEOUT_S) -> Result:
        """Wait for the end; fail the test if it takes longer than `timeout` seconds."""
        try:
            out, err = self._process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            out, err = self._process.communicate()
            pytest.fail(f"{' '.join(self.command)} did not end within {timeout} s\n{out}\n{err}")
        if self._begins_again(err):
            return self.finish(timeout)
        return Result(self._process.returncode, out, err, time.monotonic() - self._start)

    def wait_until(self, condition: Callable[[], object], timeout: float = TIMEOUT_S) -> None:
        """Wait until `condition()` is true while the job runs; fail the test if it ends or takes longer before."""
        while not condition():
            if self._process.poll() is not None or time.monotonic() - self._start > timeout:
                self.kill()
                out, err = self._process.communicate()
                if not self._begins_again(err):
                    pytest.fail(f"{' '.join(self.command)} has not come so far\n{out}\n{err}")
            time.sleep(0.02)

    def pid_of(self, rank: int) -> int:
        """The process of a rank, and none that its envs have started."""
        found = []
        self.wait_until(lambda: found.extend(p for p in processes_in(self.folder) if rank_of(p) == rank) or found)
        return next(pid for pid in found if parent_of(pid) not in found)

    def interrupt(self, rank: int) -> None:
        """Send Ctrl-C's signal to one rank."""
        os.kill(self.pid_of(rank), signal.SIGINT)

    def kill(self) -> None:
        """End what is left of it."""
        if self._process.poll() is None:
            os.killpg(self.pid, signal.SIGKILL)
        for pid in processes_in(self.folder):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def processes_in(folder: Path) -> list[int]:
    """The processes that run in a test's own folder, which are those of its jobs; this one may be there as well."""
    found = []
    for entry in set(Path("/proc").glob("[0-9]*")) - {Path("/proc", str(os.getpid()))}:
        with suppress(OSError):
            if (entry / "cwd").readlink() == folder and (entry / "cmdline").read_bytes():  # Zombies have none.
                found.append(int(entry.name))
    return found


def are_gone(folder: Path) -> bool:
    """Wait until no process of a test's jobs is left, which takes a second or two; tell whether none is."""
    give_up = time.monotonic() + GONE_S
    while processes_in(folder) and time.monotonic() < give_up:
        time.sleep(0.02)
    return not processes_in(folder)


def parent_of(pid: int) -> int:
    """The process that has started another one; 0 if that has ended."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def rank_of(pid: int) -> int | None:
    """Which rank the launcher made a process; None for the launcher itself."""
    try:
        variables = Path(f"/proc/{pid}/environ").read_text().split("\0")
    except OSError:
        return None
    names = ("OMPI_COMM_WORLD_RANK=", "PMI_RANK=")
    return next((int(v.partition("=")[2]) for v in variables if v.startswith(names)), None)


def run_job(command: list[str], cwd: Path, timeout: float = TIMEOUT_S, **extra: str) -> Result:
    """Run a command; fail the test if it takes longer than `timeout` seconds."""
    return Running(command, cwd, **extra).finish(timeout)


def worlds(folder: Path, *programs: tuple[int, list[str]]) -> list[str]:
    """The command that starts different programs as the ranks of one world."""
    command = [mpiexec()]
    for num_ranks, arguments in programs:
        command += [":"] * (len(command) > 1) + ["-n", str(num_ranks), sys.executable, "-m", "mpi_rollout", *arguments]
    return command


def launcher(num_ranks: int | None) -> list[str]:
    """What stands before a program to start it on some ranks; None is without mpiexec."""
    return [] if num_ranks is None else [mpiexec(), "-n", str(num_ranks)]


def preloadable(source: str, folder: Path) -> str:
    """Compile a C file of the tests into a library for LD_PRELOAD; return its path."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler; apt-get install gcc, or load a compiler module")
    library = folder / f"{Path(source).stem}.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, HELPERS / source, "-ldl"], check=True)
    return str(library)


@cache
def forking_ranks(python_path: str, *libraries: str) -> Path:
    """The socket of the process that has imported everything, and forks for each rank; it ends with this one.

    It has imported those of these libraries too that are installed.
    """
    path = Path(tempfile.mkdtemp(prefix="ranks-")) / "socket"
    installed = [name for name in ("scipy.special", *libraries) if find_spec(name.partition(".")[0])]
    process = subprocess.Popen(
        [PYTHON, str(HELPERS / "forking_ranks.py"), str(path), *installed], cwd=HELPERS,
        env=job_environment(PYTHONPATH=python_path), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        start_new_session=True,
    )  # fmt: skip
    atexit.register(shutil.rmtree, path.parent, ignore_errors=True)
    atexit.register(process.stdin.close)
    assert process.stdout.readline() == b"ready\n"
    return path


def forked_python(python_path: str = PYTHON_PATH, *libraries: str) -> list[str]:
    """What runs a Python program as `sys.executable` does, in a fork of `forking_ranks`."""
    return [PYTHON, "-I", "-S", str(HELPERS / "rank_of_fork.py"), str(forking_ranks(python_path, *libraries))]


def write_forking_python(path: Path, python_path: str = PYTHON_PATH, *libraries: str) -> None:
    """Write a program to be started in the place of `sys.executable`: all but its `-c` are forks."""
    command = shlex.join(forked_python(python_path, *libraries))
    path.write_text(f'#!/bin/sh\n[ "$1" = -c ] && exec {PYTHON} "$@"\nSTARTED_AS=$0 exec {command} "$@"\n')
    path.chmod(0o755)


@dataclass(frozen=True)
class Start:
    """One start of a series: its arguments, its folder if it is not the job's own, and variables of its own."""

    arguments: Sequence[object]
    folder: Path | None = None
    environment: dict[str, str] = field(default_factory=dict)


class Job:
    """Starts the program on some ranks, in the test's own folder.

    Where it `forks`, processes have imported what the program needs, and `libraries`.
    """

    def __init__(self, folder: Path, forks: bool = True, libraries: Sequence[str] = ()):
        self.folder, self.forks, self.libraries = folder, forks, libraries

    def command(self, num_ranks: int | None, *arguments: str, **extra: str) -> list[str]:
        """The command for `python -m mpi_rollout` with these variables; `num_ranks` None is without mpiexec."""
        return [*self._python(num_ranks, extra), "-m", "mpi_rollout", *map(str, arguments)]

    def _python(self, num_ranks: int | None, extra: dict[str, str]) -> list[str]:
        """What runs Python programs on these ranks.

        Where these may be forks, they get the signals that are sent to their proxies, but SIGSTOP.
        """
        is_forked = self.forks and (num_ranks is None or ranks_may_fork()) and not extra.keys() & AT_START
        python = forked_python(PYTHON_PATH, *self.libraries) if is_forked else [PYTHON]
        return [*launcher(num_ranks), *python]

    def python(self, num_ranks: int | None, *program: object, timeout: float = TIMEOUT_S, **extra: str) -> Result:
        """Run a Python program to its end."""
        return run_job([*self._python(num_ranks, extra), *map(str, program)], self.folder, timeout, **extra)

    def __call__(self, num_ranks: int | None, *arguments: str, timeout: float = TIMEOUT_S, **extra: str) -> Result:
        return self.python(num_ranks, "-m", "mpi_rollout", *arguments, timeout=timeout, **extra)

    def start(self, num_ranks: int | None, *arguments: str, **extra: str) -> Running:
        """Start without waiting for the end."""
        return Running(self.command(num_ranks, *arguments, **extra), self.folder, **extra)

    def collect(self, num_ranks: int | None, *arguments: str, out: str = "run.h5", **extra: str) -> Path:
        """Run to a good end; return the path of the file."""
        result = self(num_ranks, *arguments, "--out", out, **extra)
        assert result.code == 0, result.err
        return self.folder / out

    def series(self, starts: Sequence[Start]) -> list[Result]:
        """Run the program on this process alone, one start after the other."""
        jobs = [Job(start.folder or self.folder, libraries=self.libraries) for start in starts]
        return [job(None, *start.arguments, **start.environment) for job, start in zip(jobs, starts, strict=True)]

    def start_script(self, num_ranks: int | None, code: str, **extra: str) -> Running:
        """Start a Python program of the test's own on some ranks; None is without mpiexec."""
        return Running([*self._python(num_ranks, extra), str(self._script(code))], self.folder, **extra)

    def script(self, num_ranks: int | None, code: str, timeout: float = TIMEOUT_S, **extra: str) -> Result:
        """Run such a program to its end."""
        return self.python(num_ranks, self._script(code), timeout=timeout, **extra)

    def _script(self, code: str) -> Path:
        path = self.folder / "program.py"
        path.write_text(code)
        return path

    def train(self, num_ranks: int | None, function: str, *arguments: Any, timeout: float = TIMEOUT_S) -> Any:
        """Run a function of `trainers` on all ranks to a good end; return what it returned on the root."""
        (self.folder / "arguments").write_bytes(pickle.dumps(arguments))
        code = f"import trainers\ntrainers.main({function!r})\n"
        result = self.script(num_ranks, code, timeout, MPI_ROLLOUT_END_S="100")  # The root's data may be large.
        assert result.code == 0, result.err
        self.err = result.err
        return pickle.loads((self.folder / "returned").read_bytes())


def once(function: Callable[..., Any]) -> Callable[..., Any]:
    """Call a function once for the same arguments: as `functools.cache`, but what has failed fails again at once."""
    outcomes: dict[tuple[Any, ...], tuple[Any, BaseException | None]] = {}

    def of(*arguments: Any) -> Any:
        if arguments not in outcomes:
            try:
                outcomes[arguments] = function(*arguments), None
            except BaseException as error:
                outcomes[arguments] = None, error
        value, error = outcomes[arguments]
        if error is not None:
            raise error
        return value

    return of


def datasets(path: Path) -> dict[str, np.ndarray]:
    """All data that must not depend on ranks: /trajectories and /episodes."""
    found: dict[str, np.ndarray] = {}
    is_set = path.with_name(f"{path.name}.shards").exists()  # Its columns are virtual datasets.
    with h5py.File(path) if is_set else open_unmarked(str(path)) as file:  # Also what a killed run has left.
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


Options = Sequence[str]
WaysOf = Callable[[str, int | None], Sequence[Options]]
Collected = Callable[[int | None], dict[str, list[Path]]]


def collected_in_ways(
    folders: pytest.TempPathFactory, runs: dict[str, Options], ways_of: WaysOf, num_rows: int | None = None,
    libraries: Sequence[str] = (),
) -> Collected:  # fmt: skip
    """The files of all runs in all of their ways on some ranks, or without mpiexec, once; one job for all of them."""
    job = lambda: Job(folders.mktemp("collected"), libraries=libraries)  # noqa: E731
    return once(lambda num_ranks: files_in_ways(job(), num_ranks, runs, ways_of, num_rows))


def files_in_ways(
    job: Job, num_ranks: int | None, runs: dict[str, Options], ways_of: WaysOf, num_rows: int | None = None
) -> dict[str, list[Path]]:
    """Do each run in all of its ways, in one job, in blocks of `num_rows` steps if told; return the files."""
    ways = {name: ways_of(name, num_ranks) for name in runs}
    files = {name: [job.folder / f"{name}-{number}.h5" for number in range(len(ways[name]))] for name in runs}
    commands = [
        (*runs[name], *way, "--wait", "sleep", "--progress", "none", "--out", file.name)
        for name in runs
        for way, file in zip(ways[name], files[name], strict=True)
    ]
    codes = job.train(num_ranks, "runs", commands, num_rows)
    failed = [" ".join(command) for command, code in zip(commands, codes, strict=True) if code]
    assert not failed, f"{failed}: {job.err}"
    return files
