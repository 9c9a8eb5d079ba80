"""Every command and every Python snippet of README.md, docs/ and slurm/README.md, in order, in a fresh clone.

Fences say what a block is: `sh`, `python`, or nothing for what a program prints.  A comment before a fence, which no
reader sees, says why a block is `not run`, what the commands of a long one are given `in the test also`, or which
package it `needs` that no word in it names.
"""

import compileall
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest
from jobs import CLONE, LEARNING, Running, mpiexec, ranks_may_fork, write_forking_python

BLOCK = re.compile(
    r"(?:^<!-- (?P<mark>[^\n]*) -->\n)?^```(?P<kind>[\w{}-]*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL
)
COMMANDS = ("mpirun", "python", "pip", "make", "git", "sbatch", "slurm/", "apt-get", "cp", "export")
REASONS = (
    "SLURM",
    "a cluster",
    "brings another torch",
    "brings packages, root",
    "FILE stands for yours",
    "the network and long",
    "long",
    "takes hours",
)
NEEDED = {
    "mujoco": "Humanoid",
    "ale_py": "ALE/",
    "matplotlib": " plot",
    "stable_baselines3": "sb3|stable_baselines3|train_ppo",
    "envpool": "--vectorization-mode envpool",
    "numba": "CartPoleNumba",
}
LIBRARIES = (  # What programs import besides mpi_rollout.
    *LEARNING,
    "matplotlib.backends.backend_agg",
    "scipy.optimize",
    "numba",
    "mujoco",
    "ale_py",
    "envpool",
)
COMPILED = "mpi_rollout/envs/kernels/__pycache__"
TIMEOUT_S = 500.0  # The machine may be busy.


@dataclass(frozen=True)
class Block:
    """A fenced block: its kind, its text, and the comment before it."""

    page: str
    place: int
    kind: str
    text: str
    mark: str

    def __str__(self) -> str:
        return f"{self.page.removesuffix('.md')}-{self.place}-{self.kind}"

    @property
    def missing(self) -> list[str]:
        """The packages that it needs and that are not installed."""
        named = {name for name, words in NEEDED.items() if re.search(words, self.text)}
        if self.mark.startswith("needs: "):
            named.update(self.mark.removeprefix("needs: ").split(", "))
        return sorted(name for name in named if find_spec(name) is None)

    @property
    def is_run(self) -> bool:
        return self.kind in ("sh", "python") and not self.mark.startswith("not run: ")

    def command(self, folder: Path) -> list[str]:
        """What runs it in `folder`.  A snippet whose first line names a file becomes that file, for a later command."""
        if self.kind == "sh":
            return ["bash", "-euo", "pipefail", "-c", self._short()]
        name = re.match(r"# (\w+\.py)$", self.text.splitlines()[0])
        file = folder / (name[1] if name else f"{Path(self.page).stem}_snippet_{self.place}.py".replace("-", "_"))
        file.write_text(self.text)
        launcher = [mpiexec(), "-n", "2"] if "if envs is not None" in self.text else []
        return ["true"] if name else [*launcher, "python", file.name]

    def _short(self) -> str:
        if not self.mark.startswith("in the test also: "):
            return self.text
        more = self.mark.removeprefix("in the test also: ")
        # At the end of each command, before its comment: not of a line that goes on in the next one.
        return re.sub(r"^(.+?)(?<!\\)( +#.*)?$", rf"\1 {more}", self.text, flags=re.MULTILINE)


def blocks(page: str) -> list[Block]:
    found = enumerate(BLOCK.finditer((CLONE / page).read_text()))
    return [Block(page, place, each["kind"], each["text"], each["mark"] or "") for place, each in found]


def pages() -> list[str]:
    """The README first, whose files later pages use; then in the order of their names."""
    docs = sorted(str(path.relative_to(CLONE)) for path in (CLONE / "docs").rglob("*.md"))
    return ["README.md", "CONTRIBUTING.md", *docs, "slurm/README.md"]


ALL = [block for page in pages() for block in blocks(page)]


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What git has of this working tree, and nothing that was built in it but what Numba has compiled."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=CLONE, capture_output=True, text=True)
    if listed.returncode != 0:
        pytest.skip("this is no clone of a repository")
    folder = tmp_path_factory.mktemp("clone")
    for name in filter(None, listed.stdout.split("\0")):
        if (CLONE / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(CLONE / name, folder / name)
    compileall.compile_dir(folder / "mpi_rollout", quiet=2)  # Or the first ranks would all do it.
    (CLONE / COMPILED).mkdir(exist_ok=True)
    shutil.rmtree(folder / COMPILED)
    (folder / COMPILED).symlink_to(CLONE / COMPILED)
    return folder


@pytest.fixture(scope="module")
def forks(clone: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a `python` whose processes are forks of one that has imported the clone and what it may need."""
    folder = tmp_path_factory.mktemp("forks")
    if ranks_may_fork():
        write_forking_python(folder / "python", str(clone), *LIBRARIES)
    return folder


@pytest.mark.any_mpi
@pytest.mark.mpi
@pytest.mark.parametrize("block", [each for each in ALL if each.is_run], ids=str)
def test_it_works_as_it_stands(block: Block, clone: Path, forks: Path):
    """Those of the README start as users start them."""
    if block.missing:
        pytest.skip(f"needs {', '.join(block.missing)}")
    path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    if block.page != "README.md":
        path = f"{forks}:{path}"
    environment = {"PYTHONPATH": str(clone), "PYTHONDONTWRITEBYTECODE": ""}
    result = Running(block.command(clone), clone, PATH=path, **environment).finish(TIMEOUT_S)
    assert result.code == 0, f"{block.text}\n{result.out}\n{result.err}"


def test_what_is_not_run_is_little_and_has_a_reason():
    left_out = [block.mark.removeprefix("not run: ") for block in ALL if block.mark.startswith("not run: ")]
    others = [block.mark for block in ALL if block.mark and not block.mark.startswith("not run: ")]
    assert [mark for mark in others if not mark.startswith(("in the test also: --", "needs: "))] == []
    assert set(left_out) == set(REASONS)
    # `make slurm-test` has those of SLURM, and tests/test_deploy.py tries what it can of other clusters; to install is
    # shown where to begin, and where to contribute, and packages are tried on a page; a file of yours stands on two
    # pages.
    assert sum(reason not in ("SLURM", "a cluster") for reason in left_out) == len(REASONS) + 1


def test_pages_say_how_to_do_what_people_look_for():
    text = "".join((CLONE / page).read_text() for page in pages())
    words = ("LSTM", "pandas", "checkpoint", "wandb", "TensorBoard", "Apptainer", "conda", "PBS", "LSF")
    assert [word for word in words if not re.search(rf"\b{word}", text)] == []


def test_code_fits_into_the_page():
    """At a width of 1280 pixels."""
    lines = [line for block in ALL if block.kind in ("sh", "python") for line in block.text.splitlines()]
    assert [line for line in lines if len(line) > 96] == []


def test_no_block_is_there_twice():
    texts = [block.text for block in ALL if block.kind in ("sh", "python")]
    assert [text for text in texts if texts.count(text) > 1] == []


def test_the_readme_is_short_and_its_links_lead_somewhere():
    text = (CLONE / "README.md").read_text()
    assert len(text.splitlines()) <= 150
    targets = [target for target in re.findall(r"\]\(([^)#]+)", text) if "://" not in target]
    assert [target for target in targets if not (CLONE / target).exists()] == []


def test_files_that_pages_name_are_there():
    path = re.compile(r"\b(?:benchmarks|docs|examples|mpi_rollout|slurm|tests|tools)/[\w./-]+\.(?:c|md|py|sbatch|sh)\b")
    texts = [CLONE / page for page in [*pages(), "CHANGES.md"]] + [*(CLONE / "results/measured").glob("*.md")]
    names = {name for text in texts for name in path.findall(text.read_text())} - {"slurm/site.sh"}  # The user's.
    assert len(names) > 20 and [name for name in sorted(names) if not (CLONE / name).exists()] == []


def test_no_command_hides_in_a_block_of_output():
    shown = [each for each in ALL if each.kind not in ("sh", "python")]
    assert [each.text for each in shown if each.text.startswith(COMMANDS)] == []


def test_what_commands_write_is_no_change_of_the_clone():
    """Git ignores all of `results/` but what the project has measured."""
    names = ["results/a.h5", "results/a.png", "results/strong.svg", "results/videos/b", "results/README.md"]
    done = subprocess.run(["git", "check-ignore", *names], cwd=CLONE, capture_output=True, text=True)
    if done.returncode not in (0, 1):
        pytest.skip("this is no clone of a repository")
    assert done.stdout.split() == names[:-1]
