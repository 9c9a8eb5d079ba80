"""What stands in the place of a file and is none, such as a pipe, is refused before it is opened."""

import json
import os
import socket
from pathlib import Path

import pytest
from written_data import quiet

from mpi_rollout.cli import main
from mpi_rollout.commands.listing import list_runs
from mpi_rollout.commands.style import save
from mpi_rollout.errors import DataError, UsageError
from mpi_rollout.policies.sources import read_source, sha256_of
from mpi_rollout.process.paths import open_regular
from mpi_rollout.storage.manifest import is_set
from mpi_rollout.storage.ownership import is_locked
from mpi_rollout.storage.torn import is_marked
from mpi_rollout.storage.untrusted import open_unmarked
from mpi_rollout.storage.verification import verify
from mpi_rollout.studies.study_file import read_study

pytestmark = pytest.mark.timeout(60)
KINDS = ("pipe", "device", "socket", "folder", "link")
RUN = ("--env", "CartPole-v1", "--num-envs", "2", "--num-steps", "5", "--progress", "none")


def put(path: Path, kind: str) -> Path:
    """Make something that is no file; a device that can be read for ever."""
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(str(path))
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to(path.parent / "nowhere")
    return path


@pytest.mark.parametrize("kind", KINDS)
def test_each_reader_refuses_it(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)  # The name of a socket is short.
    path = str(put(Path("it.zip"), kind))
    for read in (open_unmarked, is_marked):
        with pytest.raises(OSError):
            read(path)
    assert not is_set(path) and not is_locked(path) and sha256_of(path) == ""
    with pytest.raises(DataError, match=r"no file but|is a folder|which is not there"):
        verify(quiet, path)
    with pytest.raises(DataError, match=r"it\.zip"):
        read_study(path)
    with pytest.raises(UsageError, match="cannot read this file"):
        read_source(path, "deterministic")


@pytest.mark.parametrize(("kind", "words"), [("pipe", "a pipe"), ("device", "a device"), ("socket", "a socket")])
def test_an_opener_says_what_it_is(tmp_path: Path, kind: str, words: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(OSError, match=f"it is {words}"):
        open_regular(str(put(Path("it"), kind)), os.O_RDONLY)


WORDS = {
    "pipe": "no file but a device, pipe or socket",
    "device": "no file but a device, pipe or socket",
    "socket": "no file but a device, pipe or socket",
    "folder": "a folder",
    "link": "a link to nowhere, which is not there",
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ending", [".part", ".part.new"])
@pytest.mark.parametrize("more", [(), ("--overwrite",), ("--dry-run",), ("--storage", "sharded")], ids=" ".join)
def test_a_run_refuses_what_stands_in_the_place_of_its_unfinished_file(
    tmp_path: Path, kind: str, ending: str, more: tuple[str, ...], capsys, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    place = put(Path(f"run.h5{ending}"), kind)
    assert main([*RUN, *more, "--out", "run.h5"]) == UsageError.exit_code
    [line] = capsys.readouterr().err.splitlines()
    assert line.endswith(f"{tmp_path / place} is {WORDS[kind]}; move it away or use another --out")
    assert not Path("run.h5").exists()


@pytest.mark.parametrize("kind", ["pipe", "device", "folder"])
def test_no_figure_is_drawn_into_it(tmp_path: Path, kind: str):
    figure = pytest.importorskip("matplotlib.figure").Figure()
    with pytest.raises(UsageError, match="there is a folder, device, pipe or socket of that name"):
        save(figure, "--plot", str(put(tmp_path / "it.png", kind)))


@pytest.mark.parametrize(
    "status", [{"x": 1}, {"state": [1]}, {"state": "failed", "message": 3, "updated": {}}], ids=str
)
def test_a_status_of_somebody_else_is_listed(tmp_path: Path, status: dict[str, object]):
    (tmp_path / "run.status.json").write_text(json.dumps(status))
    assert any(str(tmp_path / "run") in line for line in list_runs([str(tmp_path)]))
