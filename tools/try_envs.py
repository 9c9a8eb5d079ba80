"""Try environments of other packages: each in a Python environment of its own, on one rank and on two.

    python tools/try_envs.py                  # all packages of env_packages.py; takes an hour and the network
    python tools/try_envs.py highway-env nle  # some
    python tools/try_envs.py --page           # only write the page anew from what is stored

Each package is installed by pip, on top of what the Python that runs this has (this project, an MPI, Gymnasium), within
three minutes.  Then 4 envs take 50 steps on two ranks and on one; both files are compared byte by byte, and three
episodes are replayed.  What came is stored in `tried-envs.json`, from which the table of the page follows.  Without
names the table begins anew; with names their rows are replaced.
"""

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import venv
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from time import perf_counter
from typing import Any

import h5py

CLONE = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(Path(__file__).resolve().parent))

from env_packages import PACKAGES, Package

RESULTS, PAGE = CLONE / "results/measured/tried-envs.json", CLONE / "docs/how-to/tried-envs.md"
BEGIN, END = "<!-- The table: tools/try_envs.py --page -->\n", "<!-- Its end. -->\n"
INSTALL_S, RUN_S = 180, 300
SIZE = ("--num-envs", "4", "--num-steps", "50")
WORKS, FAILS, NOT_INSTALLED = "works", "fails", "not installed"


@dataclass
class Trial:
    """What came of one package."""

    name: str
    options: list[str]
    variables: dict[str, str] = field(default_factory=dict)
    version: str = ""
    state: str = NOT_INSTALLED
    message: str = ""  # Why it does not work.
    env_steps_per_s: list[float] = field(default_factory=list)  # On one rank and on two.
    same_bytes: bool = False
    is_replayed: bool = False
    seed_check: str = ""
    date: str = ""


class Place:
    """A Python environment for one package, on top of the one that runs this program."""

    def __init__(self, folder: Path, package: Package):
        self.folder, self.package = folder, package
        self.python = folder / "env/bin/python"
        base = Path(sys.executable).parent
        self.variables = {
            **os.environ,
            **package.variables,
            "PATH": f"{folder}/env/bin:{base}:{os.environ['PATH']}",
            "PYTHONPATH": str(CLONE),
            "OMP_NUM_THREADS": "1",
            "OMPI_ALLOW_RUN_AS_ROOT": "1",
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        }

    def install(self) -> str:
        """Make the environment and install the package; return why that did not work, or ""."""
        venv.create(self.folder / "env", with_pip=False, symlinks=True)
        [site] = (self.folder / "env/lib").glob("python*/site-packages")
        (site / "base.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
        try:
            done = self.run(str(self.python), "-m", "pip", "install", "-q", *self.package.installed, limit_s=INSTALL_S)
        except subprocess.TimeoutExpired:
            return f"pip needs more than {INSTALL_S} s"
        if "subprocess-exited-with-error" in done.stderr:
            return "pip cannot build it"
        if "No matching distribution found" in done.stderr:
            return f"pip finds no version for Python {'.'.join(platform.python_version_tuple()[:2])}"
        return "" if done.returncode == 0 else last_line(done.stderr, "ERROR")

    def version(self, name: str) -> str:
        code = f"from importlib.metadata import version; print(version({name!r}))"
        return self.run(str(self.python), "-c", code).stdout.strip()

    def run(self, *command: str, limit_s: float = RUN_S) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, cwd=CLONE, env=self.variables, capture_output=True, text=True, timeout=limit_s, check=False
        )

    def rollout(self, num_ranks: int, *options: str) -> subprocess.CompletedProcess[str]:
        launcher = ("mpirun", "--oversubscribe", "-n", str(num_ranks)) if num_ranks > 1 else ()
        return self.run(*launcher, str(self.python), "-m", "mpi_rollout", *options)

    def collect(self, num_ranks: int) -> tuple[Path, float]:
        """Collect on some ranks; return the file and env steps per second.  RuntimeError if it does not work."""
        out = self.folder / f"{num_ranks}.h5"
        options = (*self.package.options, *SIZE, "--out", str(out), "--progress", "none", "--json")
        try:
            done = self.rollout(num_ranks, *options)
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"the run takes more than {RUN_S} s on {num_ranks} ranks") from None
        if done.returncode:
            raise RuntimeError(last_line(done.stderr, "mpi_rollout:"))
        summaries = [line for line in done.stdout.splitlines() if line.startswith("{")]
        return out, float(json.loads(summaries[-1])["env_steps_per_s"])


def last_line(text: str, marker: str) -> str:
    """Return the last line with this marker, or the last one of all."""
    lines = [line.strip() for line in text.splitlines() if line.strip()] or ["no message"]
    marked = [line for line in lines if marker in line]
    return (marked or lines)[-1]


def columns(path: Path) -> dict[str, bytes]:
    """Read the bytes of all that the envs have given."""
    found: dict[str, bytes] = {}
    with h5py.File(path) as file:
        for group in ("trajectories", "episodes"):
            item = file[group]
            if isinstance(item, h5py.Dataset):
                found[group] = item[...].tobytes()
            else:
                item.visititems(lambda name, own: keep(found, name, own))
    return found


def keep(found: dict[str, bytes], name: str, item: object) -> None:
    if isinstance(item, h5py.Dataset):
        found[name] = item[...].tobytes()


def try_package(package: Package) -> Trial:
    """Install a package, and try its env."""
    trial = Trial(package.name, list(package.options), dict(package.variables))
    trial.date = datetime.now(UTC).date().isoformat()
    folder = Path(tempfile.mkdtemp(prefix="tried-"))
    try:
        place = Place(folder, package)
        trial.message = place.install()
        trial.version = place.version(package.name)
        if not trial.message:
            fill(trial, place)
    except RuntimeError as error:
        trial.state, trial.message = FAILS, str(error) + other_gymnasium(place)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    for path in (folder, CLONE):
        trial.message = trial.message.removeprefix("mpi_rollout: ").replace(f"{path}/", "").replace(str(path), ".")
    return trial


def other_gymnasium(place: Place) -> str:
    """Say which Gymnasium a package has brought, if that is another one."""
    there, here = place.version("gymnasium"), version("gymnasium")
    return "" if there == here else f"; it brings Gymnasium {there}"


def fill(trial: Trial, place: Place) -> None:
    """Run on one rank and on two, and look at the files."""
    (one, rate), (two, rate_of_two) = place.collect(1), place.collect(2)
    trial.env_steps_per_s = [float(f"{each:.3g}") for each in (rate, rate_of_two)]
    trial.same_bytes = columns(one) == columns(two)
    with h5py.File(two) as file:
        trial.seed_check = str(file.attrs.get("seed_check", ""))
    done = place.rollout(1, "verify", str(two), "--replay", "3", "--trust")
    trial.is_replayed = done.returncode == 0
    trial.state, trial.message = WORKS, "" if trial.is_replayed else last_line(done.stderr, "mpi_rollout:")


def read_results(path: Path = RESULTS) -> dict[str, Any]:
    """Return what is stored: the machine, and each package's trial by the name that the command line has for it."""
    return json.loads(path.read_text()) if path.exists() else {"machine": "", "trials": {}}


def store(results: Mapping[str, Any], path: Path = RESULTS) -> None:
    path.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")


def machine() -> str:
    return f"{os.cpu_count()} cores, Python {platform.python_version()}"


def table_of(results: Mapping[str, Any], packages: Sequence[Package] = PACKAGES) -> str:
    """Return the page's tables: the packages that work, and those that do not, with the reason."""
    trials = results["trials"]
    tried = [(each, trials[each.called]) for each in packages if each.called in trials]
    works = [(package, trial) for package, trial in tried if trial["state"] == WORKS]
    others = [(package, trial) for package, trial in tried if trial["state"] != WORKS]
    lines = ["| package | variables and options | same bytes | what to know |", "|---|---|---|---|"]
    lines += [row_of(*pair) for pair in works]
    lines += ["", "These did not work:", "", "| package | variables and options | why |", "|---|---|---|"]
    lines += [row_of_failure(*pair) for pair in others]
    return "\n".join(lines) + "\n"


def row_of(package: Package, trial: Mapping[str, Any]) -> str:
    same, bar = "yes" if trial["same_bytes"] else "no", "\\|"
    notes = [package.note] if package.note else []
    if not trial["is_replayed"]:
        notes.append("episodes do not come again from their seeds")
    if trial["seed_check"] not in ("", "same"):
        notes.append("the run says so at its start")
    return f"| {titled(trial)} | {as_code(trial)} | {same} | {'; '.join(notes).replace('|', bar)} |"


def row_of_failure(package: Package, trial: Mapping[str, Any]) -> str:
    why = "; ".join(filter(None, (trial["message"], package.note)))
    return f"| {titled(trial)} | {as_code(trial)} | {escaped(why)} |"


def titled(trial: Mapping[str, Any]) -> str:
    return f"{trial['name']} {trial['version']}".strip()


def as_code(trial: Mapping[str, Any]) -> str:
    """Return what stands before and behind `python -m mpi_rollout`: variables of the environment, and options."""
    variables = [f"{name}={value}" for name, value in trial["variables"].items()]
    return f"`{' '.join([*variables, *trial['options']])}`"


def escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


def write_page(results: Mapping[str, Any], page: Path = PAGE) -> None:
    """Put the table of the results between the page's two marks."""
    before, rest = page.read_text().split(BEGIN)
    page.write_text(f"{before}{BEGIN}\n{table_of(results)}\n{END}{rest.split(END)[1]}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("packages", nargs="*", metavar="PACKAGE", help="names in env_packages.py (default: all)")
    parser.add_argument("--page", action="store_true", help="try nothing, only write the page")
    given = parser.parse_args()
    known = {package.called: package for package in PACKAGES}
    if unknown := set(given.packages) - known.keys():
        parser.error(f"PACKAGE must be one of {', '.join(known)}, got {', '.join(sorted(unknown))}")
    if not given.packages and not given.page:
        store({"machine": machine(), "trials": {}})
    for name in [] if given.page else given.packages or known:
        start, trial = perf_counter(), try_package(known[name])
        results = read_results()
        results["machine"] = machine()
        results["trials"][name] = asdict(trial)
        store(results)
        print(f"{name} {trial.version}: {trial.state} {trial.message} ({perf_counter() - start:.0f} s)", flush=True)
    if PAGE.exists():
        write_page(read_results())
    return 0


if __name__ == "__main__":
    sys.exit(main())
