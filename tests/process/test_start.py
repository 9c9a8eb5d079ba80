"""What stands before the slow imports: signals are heeded, and what keeps the program from starting is told."""

import ast
import os
import signal
import subprocess
import sys
from configparser import ConfigParser
from pathlib import Path

import pytest
from jobs import CLONE, HELPERS, Job, Running, are_gone, is_hydra, job_environment, launcher, processes_in, run_job
from stopped_runs import is_code

from mpi_rollout.errors import Interrupted, LaunchError
from mpi_rollout.process import rank_variables, start

pytestmark = pytest.mark.full_start

RUN = ("--env", "CartPole-v1", "--num-envs", "6", "--num-steps", "5", "--out", "run.h5", "--progress", "none")
SLOW = """
import os, time
open(f"imports-{os.getpid()}", "w").close()
time.sleep(60)
"""
OF_PROCESS = "__init__", "hash_seed", "leftovers", "rank_variables", "start"
READ_BY_OLD_PYTHONS = ("__init__", "__main__", *(f"process/{name}" for name in OF_PROCESS))


def slow_package(job: Job) -> dict[str, str]:
    """The variables with which an import of Gymnasium takes a minute, and shows that it has begun."""
    package = job.folder / "slow" / "gymnasium"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(SLOW)
    return {"PYTHONPATH": f"{package.parent}:{CLONE}:{HELPERS}"}


def words_of(name: str) -> str:
    return f"stopped by {name} before the first step; give the same command again"


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGUSR1"])
def test_a_signal_amid_the_imports_ends_the_program_with_one_line(job: Job, name: str):
    run = job.start(None, *RUN, **slow_package(job))
    run.wait_until(lambda: [*job.folder.glob("imports-*")])
    os.kill(run.pid, getattr(signal, name))
    result = run.finish(20)
    assert (result.code, result.messages, result.num_tracebacks) == (75, [words_of(name)], 0), result.err


def test_on_several_hosts_srun_may_have_sent_the_signal_since_another_rank_left(job: Job):
    step = {"SLURM_STEP_ID": "0", "SLURM_STEP_TASKS_PER_NODE": "1,2", "SLURM_STEP_NUM_NODES": "2", "SLURM_PROCID": "0"}
    run = job.start(None, *RUN, **slow_package(job), **step)
    run.wait_until(lambda: [*job.folder.glob("imports-*")])
    os.kill(run.pid, signal.SIGTERM)
    result = run.finish(20)
    otherwise = ", unless a rank on another host has said why it left"
    assert (result.code, result.messages) == (75, [words_of("SIGTERM") + otherwise]), result.err


@pytest.mark.mpi(1, 2)
def test_no_rank_outlives_a_launcher_that_is_killed_amid_the_imports(job: Job, num_ranks: int):
    run = job.start(num_ranks, *RUN, **slow_package(job))
    run.wait_until(lambda: len([*job.folder.glob("imports-*")]) == num_ranks)
    os.kill(run.pid, signal.SIGKILL)
    assert are_gone(job.folder), processes_in(job.folder)
    run.finish()


@pytest.mark.mpi(3)
def test_a_signal_that_the_launcher_passes_on_is_told_once(job: Job, num_ranks: int):
    run = job.start(num_ranks, *RUN, **slow_package(job))
    run.wait_until(lambda: len([*job.folder.glob("imports-*")]) == num_ranks)
    os.kill(run.pid, signal.SIGUSR1)
    result = run.finish(20)
    assert (result.code, result.messages, result.num_tracebacks) == (75, [words_of("SIGUSR1")], 0), result.err


@pytest.mark.mpi(3)
@pytest.mark.parametrize("place", ["root", "other"])
def test_a_signal_to_one_rank_ends_all(job: Job, num_ranks: int, place: str):
    run = job.start(num_ranks, *RUN, **slow_package(job))
    run.wait_until(lambda: len([*job.folder.glob("imports-*")]) == num_ranks)
    rank = 0 if place == "root" else 2
    os.kill(run.pid_of(rank), signal.SIGTERM)
    result = run.finish(20)
    assert is_code(result, 75) and words_of("SIGTERM") in result.err
    assert result.messages[0].startswith(f"rank {rank} (") == bool(rank) and are_gone(job.folder)


@pytest.mark.mpi(2)
def test_a_rank_that_waits_for_others_in_mpi_init_heeds_signals(job: Job, num_ranks: int):
    """No handler in Python is called there."""
    waiting = f"""
import os, sys, time
if {[*rank_variables.RANK_VARIABLES]!r} and os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("PMI_RANK")) == "1":
    open("waits", "w").close()
    time.sleep(60)
from mpi_rollout.__main__ import start
sys.exit(start())
"""
    (job.folder / "program.py").write_text(waiting)
    run = Running([*launcher(num_ranks), sys.executable, "program.py", *RUN], job.folder)
    run.wait_until((job.folder / "waits").exists)
    root = run.pid_of(0)
    run.wait_until(lambda: "start" in threads_of(root))
    os.kill(root, signal.SIGTERM)
    result = run.finish(20)
    assert is_code(result, 75) and words_of("SIGTERM") in result.err, result.err


def threads_of(pid: int) -> list[str]:
    """The names of the threads that are in MPI_Init's company: those of a process that has libmpi and waits."""
    maps = Path(f"/proc/{pid}/maps").read_text()
    return ["start"] if "libmpi" in maps and len([*Path(f"/proc/{pid}/task").iterdir()]) > 4 else []


def test_children_that_are_forked_meanwhile_end_by_a_signal_as_any_process():
    program = """
import os, signal, time
from mpi_rollout.process import start
start.heed_signals()
ready, begun = os.pipe()
if (child := os.fork()) == 0:
    os.write(begun, b"!")  # Python forgets a signal that comes while it forks.
    time.sleep(60)
    os._exit(1)
os.read(ready, 1)
os.kill(child, signal.SIGTERM)
print(os.WTERMSIG(os.waitpid(child, 0)[1]))
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=CLONE)
    assert (result.stdout, result.stderr) == ("15\n", "")


def test_who_is_told_to_ignore_signals_ignores_them():
    program = """
import signal
signal.signal(signal.SIGUSR1, signal.SIG_IGN)
from mpi_rollout.process import start
start.heed_signals()
assert signal.getsignal(signal.SIGUSR1) == signal.SIG_IGN and start.is_heeding()
"""
    subprocess.run([sys.executable, "-c", program], check=True, cwd=CLONE)


def test_nothing_that_takes_time_is_imported_before_signals_are_heeded():
    program = "import sys; before = {*sys.modules}; import mpi_rollout.process.start; print({*sys.modules} - before)"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=CLONE)
    own = {"mpi_rollout", *(f"mpi_rollout.{name}" for name in ("process", "process.start", "process.rank_variables"))}
    others = ast.literal_eval(result.stdout) - own
    assert all(name.partition(".")[0] in ("importlib", "warnings") for name in others), others


@pytest.mark.parametrize("module", READ_BY_OLD_PYTHONS)
def test_an_old_python_can_read_what_tells_it_that_it_is_old(module: str):
    source = (CLONE / f"mpi_rollout/{module}.py").read_text()
    assert ast.parse(source, feature_version=(3, 6)).body  # Else a SyntaxError says what is too new.


def test_what_is_written_twice_is_the_same():
    assert (Interrupted.exit_code, LaunchError.exit_code) == (start.STOPPED, start.WRONG_LAUNCH)
    setup = ConfigParser()
    setup.read(CLONE / "setup.cfg")
    required = {line.split()[0] for line in setup["options"]["install_requires"].splitlines() if line}
    least = {f"{name} >= {'.'.join(map(str, numbers))}" for name, numbers in start.LEAST.items()}
    assert least == {*filter(None, setup["options"]["install_requires"].splitlines())}
    assert required - {*start.PACKAGES} == {"mpi4py"} and setup["options"]["python_requires"] == ">=3.11"


@pytest.mark.parametrize("num_ranks", [None, pytest.param(3, marks=pytest.mark.mpi)])
def test_a_python_without_the_packages_says_so_in_one_line(job: Job, num_ranks: int | None):
    """As where the virtual environment was not activated."""
    command = job.command(num_ranks, *RUN)
    command.insert(command.index("-m"), "-S")
    result = run_job(command, job.folder, PYTHONPATH=str(CLONE))
    assert (result.code, result.num_tracebacks, len(result.messages)) == (78, 0, 1), result.err
    [message] = result.messages
    assert message.startswith(f"{sys.executable} has no numpy, gymnasium, h5py, tqdm; ") and "activate" in message


@pytest.mark.mpi(3)
@pytest.mark.parametrize("has_wrapper", [False, True])
def test_of_ranks_that_refuse_to_start_the_first_says_why(job: Job, num_ranks: int, has_wrapper: bool):
    """Rank 0 is not among them; also where a script stands between the launcher and its ranks."""
    if has_wrapper and is_hydra():
        pytest.skip(
            "MPICH's launcher goes on after such an end of a script, and rank 0 waits for the others in MPI_Init"
        )
    program = [sys.executable, str(HELPERS / "refusing_ranks.py"), "1,2", *RUN]
    wrapper = ["sh", "-c", '"$@"; exit $?', "wrapper"] * has_wrapper
    result = run_job([*launcher(num_ranks), *wrapper, *program], job.folder, PYTHONPATH=str(CLONE))
    assert result.code and 1 <= len(result.messages) <= 1 + has_wrapper, result.err
    assert all(message.startswith("rank ") and " has no nosuchpackage; " in message for message in result.messages)


BROKEN = """
import os
import sys


class Broken:
    def find_spec(self, name, path=None, target=None):
        if name == "gymnasium.envs":
            raise ImportError("libsuite.so.3: cannot open shared object file")


if os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("PMI_RANK")) == "{rank}":
    sys.meta_path.insert(0, Broken())
"""


@pytest.mark.any_mpi
@pytest.mark.full_start
@pytest.mark.mpi(2)
@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_cannot_import_the_program_ends_the_job_at_once(job: Job, num_ranks: int, rank: int):
    """Also where the others are in MPI_Init, or have left it, and wait for it."""
    (job.folder / "sitecustomize.py").write_text(BROKEN.format(rank=rank))
    command = job.command(num_ranks, *RUN)
    result = run_job(command, job.folder, PYTHONPATH=f"{job.folder}:{CLONE}")
    assert result.code and result.seconds < 20, result.err
    assert result.num_tracebacks == 1 and "ImportError: libsuite.so.3" in result.err, result.err
    [message] = result.messages
    assert message.endswith("cannot import what it needs, see above: ImportError")


def test_what_an_env_cannot_import_is_told_as_the_envs(job: Job):
    (job.folder / "mine.py").write_text("import nosuchthing\n")
    result = job(None, "--env-factory", "mine:make", *RUN[2:])
    assert result.code == 64 and len(result.messages) == 1, result.err
    assert "cannot import 'mine': ModuleNotFoundError: No module named 'nosuchthing'" in result.messages[0]


@pytest.mark.parametrize("name", ["random", "signal", "gymnasium"])
def test_a_file_that_shadows_a_module_of_python_is_named(job: Job, name: str):
    (job.folder / f"{name}.py").write_text("x = 1\n")
    result = job(None, *RUN)
    assert (result.code, result.num_tracebacks) == (78, 0), result.err
    path = job.folder / f"{name}.py"
    assert result.messages == [
        f"Python takes {path} for the module {name} that it needs; rename that file, or start elsewhere"
    ]


def test_a_shadow_that_falls_on_the_run_is_named_too(job: Job):
    (job.folder / "queue.py").write_text("x = 1\n")
    result = job(None, *RUN)
    assert result.code == 70 and f"Python takes {job.folder / 'queue.py'} for the module queue" in result.messages[-1]


def test_a_file_with_such_a_name_that_fails_nobody_is_not_blamed(job: Job):
    (job.folder / "statistics.py").write_text("x = 1\n")
    (job.folder / "mine.py").write_text("import statistics\n\n\ndef make():\n    raise RuntimeError('no licence')\n")
    result = job(None, "--env-factory", "mine:make", *RUN[2:])
    assert result.code == 70 and "no licence" in result.err and "statistics" not in "".join(result.messages)


def with_old_gymnasium(folder: Path) -> str:
    """A path for Python on which Gymnasium is too old, as far as the program can tell; and it cannot be used."""
    (folder / "old" / "gymnasium").mkdir(parents=True)
    (folder / "old" / "gymnasium-1.0.0.dist-info").mkdir()
    (folder / "old" / "gymnasium" / "__init__.py").write_text("raise ImportError('cannot import AutoresetMode')")
    return os.pathsep.join([str(folder / "old"), str(CLONE)])


@pytest.mark.parametrize("command", [RUN, (*RUN, "--dry-run"), ("doctor",)], ids=["run", "dry run", "doctor"])
def test_a_package_that_is_too_old_is_named_in_one_line_with_both_versions(job: Job, command: tuple[str, ...]):
    result = job(None, *command, PYTHONPATH=with_old_gymnasium(job.folder))
    assert (result.code, result.num_tracebacks, len(result.messages)) == (78, 0, 1), result.err
    assert "has gymnasium 1.0.0, and mpi_rollout needs 1.1 or newer" in result.messages[0]


@pytest.mark.parametrize("name", ["connect", "launch", "MPIVectorEnv"])
def test_a_trainer_hears_of_a_package_that_is_too_old(job: Job, name: str):
    program = f"import mpi_rollout\nmpi_rollout.{name}"
    result = job.script(None, program, PYTHONPATH=with_old_gymnasium(job.folder))
    assert result.code == 1 and result.num_tracebacks == 1, result.err
    last = result.err.strip().splitlines()[-1]
    assert last.startswith("ImportError: ") and "gymnasium 1.0.0, and mpi_rollout needs 1.1 or newer" in last


@pytest.mark.parametrize(("version", "numbers"), [("1.26.4", (1, 26)), ("4.60", (4, 60)), ("3.11rc1", ()), ("x", ())])
def test_versions_are_compared_by_their_first_two_numbers(version: str, numbers: tuple[int, ...]):
    assert start._numbers(version) == numbers


STEP_OF_TWO = """
import ctypes, os, signal, sys, time
from mpi_rollout.process.start import end_after_loss
ctypes.CDLL(None).prctl(15, b"slurmstepd")  # PR_SET_NAME
os.environ.update(SLURM_STEP_ID="0", SLURM_STEP_TASKS_PER_NODE="2", SLURM_NODEID="0")
other = os.fork()
if not other:
    signal.pause()
if {is_lost}:
    os.kill(other, signal.SIGKILL)
    os.wait()
rank = os.fork()
if not rank:
    end_after_loss(signal.SIGTERM)
    os._exit(7)
_, status = os.waitpid(rank, 0)
if not {is_lost}:
    os.kill(other, signal.SIGKILL)
print(os.waitstatus_to_exitcode(status))
"""


@pytest.mark.parametrize(("is_lost", "code"), [(True, -signal.SIGKILL), (False, 7)])
def test_a_rank_ends_at_once_where_srun_stops_it_since_another_one_is_lost(is_lost: bool, code: int):
    program = [sys.executable, "-c", STEP_OF_TWO.format(is_lost=is_lost)]
    done = subprocess.run(program, env=job_environment(), capture_output=True, text=True, timeout=300)
    assert done.stdout == f"{int(code)}\n", done.stderr
