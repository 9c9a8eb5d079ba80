"""slurm/pack.sh, and how jobs have the environment copied to nodes, of which here is one: this machine."""

import os
import shutil
import subprocess
import tarfile
import venv
from pathlib import Path

import pytest
from jobs import CLONE

SCRIPTS = CLONE / "slurm"
SQUASHFS = pytest.param(
    "image.sqsh", marks=pytest.mark.skipif(not shutil.which("mksquashfs"), reason="needs squashfs-tools")
)
# SLURM of a single node; what ranks would import.
STAGE = f"""scripts={SCRIPTS}; script=test; source {SCRIPTS}/launch.sh; SLURM_JOB_ID=1
sbcast() {{ cp "$2" "$3"; }}; squeue() {{ :; }}; on_each_node() {{ bash -c "$1"; }}
read_site; look_at_image; stage_environment
"$PYTHON" -c 'import mpi_rollout, other; print(mpi_rollout.__file__, other.__file__, sep="\\n")'
ls "$STAGE"
"""


class Site:
    """A cluster's settings, and an environment with one module and a package that is a link to its sources."""

    def __init__(self, folder: Path):
        self.folder, self.node, self.scratch = folder, folder / "node", folder / "scratch"
        venv.create(folder / "venv", symlinks=True)  # Without pip.
        self.modules = next((folder / "venv").glob("lib/python*/site-packages"))
        (self.modules / "link.pth").write_text(f"{folder}/sources\n")
        (self.modules / "other-1.dist-info").mkdir()
        self.package = folder / "sources" / "mpi_rollout"
        for path in (self.modules / "other.py", self.package / "__init__.py"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        self.node.mkdir()
        self.scratch.mkdir()
        self.settings()

    def settings(self, image: str = "") -> None:
        line = f"IMAGE={self.scratch}/{image}\n" if image else ""
        (self.folder / "site.sh").write_text(f"source {self.folder}/venv/bin/activate\nSTAGE={self.node}\n{line}")

    def bash(self, *arguments: str, path: str = os.environ["PATH"]) -> subprocess.CompletedProcess:
        environment = {"PATH": path, "MPI_ROLLOUT_SITE": f"{self.folder}/site.sh"}
        command = [str(shutil.which("bash")), *arguments]
        return subprocess.run(command, cwd=self.folder, env=environment, capture_output=True, text=True, timeout=300)

    def pack(self, *arguments: str, **more: str) -> subprocess.CompletedProcess:
        return self.bash(f"{SCRIPTS}/pack.sh", *arguments, **more)

    @property
    def files(self) -> list[str]:
        return sorted(path.name for path in self.scratch.iterdir())


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


@pytest.mark.parametrize("image", ["", "image.tar", "image.tar.gz", SQUASHFS])
def test_ranks_import_everything_from_the_copy_and_only_that_is_on_the_node(site, image):
    site.settings(image)
    if image:
        done = site.pack()
        assert (done.returncode, done.stderr, site.files) == (0, "", [image])
    done = site.bash("-c", STAGE)
    copy = site.node / "mpi_rollout-1"
    modules = copy / site.modules.relative_to(site.folder / "venv")
    assert done.stdout.splitlines() == [f"{copy}/mpi_rollout/__init__.py", f"{modules}/other.py", "mpi_rollout-1"]
    assert (done.returncode, done.stderr, [*site.node.iterdir()]) == (0, "", [])


def test_an_image_of_conda_pack_is_told_where_it_is(site):
    """It has the package among its modules."""
    site.settings("image.tar.gz")
    site.package.rename(site.modules / "mpi_rollout")
    (site.folder / "venv" / "bin" / "conda-unpack").write_text("print('unpacked by', __file__)")
    with tarfile.open(site.scratch / "image.tar.gz", "w:gz") as image:
        image.add(site.folder / "venv", ".")
    done = site.bash("-c", STAGE)
    copy = site.node / "mpi_rollout-1"
    assert done.stdout.splitlines()[0] == f"unpacked by {copy}/bin/conda-unpack", done.stderr
    assert done.stdout.splitlines()[1].startswith(f"{copy}/lib/")


def test_a_job_tells_that_its_image_is_older_than_what_is_installed(site):
    site.settings("image.tar")
    site.pack()
    for newer in (site.modules / "other-1.dist-info", site.package / "__init__.py"):
        os.utime(newer)
        done = site.bash("-c", STAGE)
        assert f"image.tar is older than {newer}; the job goes on with what is in the image" in done.stderr
        assert (done.returncode, done.stderr.count("\n")) == (0, 1)
        os.utime(newer, (0, 0))


def test_an_image_that_is_not_there_or_lacks_the_package_is_refused(site):
    site.settings("image.tar")
    done = site.bash("-c", STAGE)
    assert (done.returncode, done.stderr.count("\n")) == (78, 1)
    assert f"cannot read {site.scratch}/image.tar (IMAGE in site.sh); bash {SCRIPTS}/pack.sh makes it" in done.stderr
    with tarfile.open(site.scratch / "image.tar", "w") as image:
        image.add(site.folder / "venv", ".")
    done = site.bash("-c", STAGE)
    assert done.returncode == 78 and "there is no mpi_rollout in" in done.stderr
    assert f"cannot copy {site.scratch}/image.tar to {site.node} on each node" in done.stderr
    assert [*site.node.iterdir()] == []


@pytest.mark.parametrize(("end", "code"), [("exit 1", 74), ("kill $PPID", -15), ("kill -KILL $PPID", -9)])
def test_a_pack_that_fails_or_is_killed_leaves_the_image_as_it_was(site, end, code):
    image = site.scratch / "image.tar"
    image.write_text("whole")
    (site.folder / "tar").write_text(
        f'#!/bin/sh\nfor each; do case $each in --file=*) echo half > "${{each#*=}}"; esac; done\n{end}\n'
    )
    (site.folder / "tar").chmod(0o755)
    done = site.pack(str(image), path=f"{site.folder}:{os.environ['PATH']}")
    assert (done.returncode, image.read_text()) == (code, "whole")
    assert [name.startswith("part-") for name in site.files if name != "image.tar"] == ([True] if code == -9 else [])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "the file is missing; bash slurm/pack.sh FILE.sqsh, or IMAGE in site.sh"),
        (("a.sif",), "the name must end in .sqsh, .tar or .tar.gz, which says what the file is to be, got a.sif"),
        (("a.sqsh",), "there is no mksquashfs (package squashfs-tools) to make a.sqsh; bash slurm/pack.sh a.tar"),
    ],
)  # fmt: skip
def test_what_cannot_be_packed_is_refused_in_one_line(site, arguments, words):
    """Where there are hardly any programs."""
    (site.folder / "tools").mkdir()
    (site.folder / "tools" / "dirname").symlink_to(str(shutil.which("dirname")))
    done = site.pack(*arguments, path=f"{site.folder}/tools")
    assert (done.returncode, done.stderr.count("\n")) == (78, 1)
    assert words in done.stderr


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("IMAGE=image.tar", "must be a file with its whole path, got image.tar"),
        ("STAGE=\nIMAGE=/image.tar", "needs a folder that each node has for itself; STAGE=/tmp"),
    ],
)
def test_settings_of_an_image_that_cannot_be_are_refused_in_one_line(site, line, words):
    with open(site.folder / "site.sh", "a") as settings:
        settings.write(line)
    done = site.pack()
    assert (done.returncode, done.stderr.count("\n")) == (78, 1)
    assert words in done.stderr
