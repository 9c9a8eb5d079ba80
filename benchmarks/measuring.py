"""What all programs here share: how they start jobs, take turns, and tell what came.

Shared machines drift.  So what is compared takes turns, in another random order in each round; ratios are taken within
a round, and told as median and range.  Each program says at its top what it measures, and prints Markdown tables.
"""

import json
import os
import platform
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import TypeVar

from mpi_rollout.studies.jobs import find_launcher
from mpi_rollout.studies.study_file import cpu_model

CHECKOUT = Path(__file__).resolve().parents[1]
MEASURED, HELPERS = CHECKOUT / "results/measured", CHECKOUT / "tests/helpers"
ROUNDS = 5
QUIET = "--progress none --json"

Value = TypeVar("Value")
Rates = Sequence[float]


def machine() -> str:
    """One line that says where and when."""
    when = datetime.now(UTC).date().isoformat()
    return f"{cpu_model()}, {os.cpu_count()} cores, Python {platform.python_version()}, {when}"


def command_of(num_ranks: int, *arguments: object) -> list[str]:
    """The command that runs Python on some ranks, or without mpirun on 0."""
    launcher = [find_launcher() or "mpirun", "-n", str(num_ranks)] if num_ranks else []
    return [*launcher, sys.executable, *map(str, arguments)]


def environment(**variables: str) -> dict[str, str]:
    """Variables of a process that finds this checkout, and in which the ranks of a job may be root's."""
    own = [variables.pop("PYTHONPATH", ""), str(CHECKOUT), str(CHECKOUT / "benchmarks")]
    path = os.pathsep.join(filter(None, [*own, os.environ.get("PYTHONPATH", "")]))
    as_root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return os.environ | as_root | {"PYTHONPATH": path} | variables


def python(num_ranks: int, *arguments: object, folder: str | None = None, **variables: str) -> str:
    """Run Python on some ranks, or without mpirun on 0; return what it prints."""
    command = command_of(num_ranks, *arguments)
    done = subprocess.run(command, env=environment(**variables), cwd=folder, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    return done.stdout


def compiled(library: str) -> str:
    """Compile network.c, which delays and counts the messages of jobs that load it first; return `library`."""
    compiler = shutil.which("mpicc", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    if compiler is None or shutil.which("cc") is None:
        sys.exit("network.c needs Open MPI's mpicc and a C compiler; apt-get install gcc, or load its module")
    source = CHECKOUT / "benchmarks/network.c"
    subprocess.run([compiler, "-O2", "-shared", "-fPIC", "-o", library, source], check=True)
    return library


def run(num_ranks: int, options: str, *more: str, keep: str = "", **variables: str) -> dict:
    """Do a run of this program; return what it says of itself, and the bytes of its file, which only `keep` keeps."""
    with tempfile.TemporaryDirectory(dir=".") as folder:
        out = Path(keep or Path(folder, "run.h5"))
        words = [*options.split(), *QUIET.split(), "--out", out, *more]
        summary = json.loads(python(num_ranks, "-m", "mpi_rollout", "run", *words, **variables).splitlines()[-1])
        return summary | {"file_bytes": out.stat().st_size}


def turns(ways: Mapping[str, Callable[[], Value]], rounds: int = ROUNDS) -> dict[str, list[Value]]:
    """Let each way have its turn in each round; return what they gave."""
    values: dict[str, list[Value]] = {name: [] for name in ways}
    for number in range(rounds):
        for name in random.Random(number).sample(list(ways), len(ways)):
            values[name].append(ways[name]())
    return values


def ratios(these: Rates, those: Rates) -> list[float]:
    """One over the other, round by round."""
    return [this / that for this, that in zip(these, those, strict=True)]


def spread(values: Iterable[float], form: str = ".3f") -> str:
    """Median and range."""
    some = list(values)
    return f"{median(some):{form}} ({min(some):{form}} to {max(some):{form}})"


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a Markdown table, each row as soon as it is measured."""
    print(f"| {' | '.join(head)} |\n|{'---|' * len(head)}", flush=True)
    for row in rows:
        print(f"| {' | '.join(map(str, row))} |", flush=True)
    print()


@contextmanager
def busy(count: int) -> Iterator[None]:
    """Let other programs compute all the time, each in a session of its own: some systems share cores by session."""
    # They end with this program too where it is killed.
    program = f"import os\nwhile os.getppid() == {os.getpid()}:\n    sum(range(1_000_000))"
    others = [subprocess.Popen([sys.executable, "-c", program], start_new_session=True) for _ in range(count)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


@contextmanager
def cores_of_others(taken: list[float]) -> Iterator[None]:
    """Append how many cores other programs used meanwhile, on average: what these processes did not take."""

    def spent() -> tuple[float, float]:
        user, nice, system, _, _, *others = map(int, Path("/proc/stat").read_text().split()[1:9])
        used = (user + nice + system + sum(others)) / os.sysconf("SC_CLK_TCK")
        return time.monotonic(), used - sum(os.times()[:4])

    start, before = spent()
    yield
    stop, after = spent()
    taken.append((after - before) / (stop - start))


def main(about: str | None, measures: Mapping[str, Callable], parts: Mapping[str, Callable] | None = None) -> None:
    """Do what the command line names: a measure with its words and numbers, or a part that a measure starts."""
    what, *words = sys.argv[1:] or ["--help"]
    values = [int(word) if word.isdecimal() else word for word in words]
    if parts and what in parts:
        parts[what](*values)
    elif what in measures:
        print(f"{machine()}: `python benchmarks/{' '.join([Path(sys.argv[0]).name, *sys.argv[1:]])}`\n", flush=True)
        measures[what](*values)
    else:
        sys.exit(about)
