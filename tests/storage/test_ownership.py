"""Who owns an output: locks, names, and temporary files beside it."""

import errno
import os
import subprocess
from pathlib import Path

import pytest

from mpi_rollout.errors import UsageError, as_flag
from mpi_rollout.storage import ownership
from mpi_rollout.storage.ownership import (
    check_name,
    give_name,
    identity,
    is_at,
    is_locked,
    lock,
    make_folder,
    make_locked,
    put_in_free_place,
    remove_empty_folders,
    temporary_path,
    why_no_file,
    why_no_locks,
)

HOST = os.uname().nodename


def test_files_of_dead_processes_of_this_host_are_removed_and_no_others(tmp_path: Path):
    dead = subprocess.Popen(["true"])
    dead.wait()
    out = tmp_path / "run[1].h5"
    gone = [Path(f"{out}.probe-{HOST}-{dead.pid}")]
    kept = [
        Path(f"{out}.{end}") for end in (f"probe-{HOST}-{os.getpid()}", f"probe-other-{dead.pid}", "probe-mine", "part")
    ]
    for path in gone + kept:
        path.touch()
    assert temporary_path(str(out), "probe") == f"{out}.probe-{HOST}-{os.getpid()}"
    assert sorted(tmp_path.iterdir()) == sorted(kept)


def num_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_a_temporary_file_is_removed_whatever_happens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "new"
    for is_read_only in (False, True):
        path.touch()
        if is_read_only:
            monkeypatch.setattr(ownership.os, "unlink", refuse)
        with pytest.raises(UsageError, match="what went wrong"), ownership.removed(str(path)):
            raise UsageError("what went wrong")
        assert path.exists() == is_read_only


def refuse(path: str) -> None:
    raise OSError(errno.EROFS, "Read-only file system")


def test_a_lock_is_seen_and_released_with_its_descriptor(tmp_path: Path):
    path, before = str(tmp_path / "run.h5.part"), num_descriptors()
    held = make_locked(path)
    assert is_locked(path) and not is_locked(str(tmp_path / "other"))
    for take in (make_locked, lock):
        with pytest.raises(UsageError, match="another run is writing it"):
            take(path)
    with open(path, "r+b") as file:
        assert why_no_locks(file.fileno())
    held.release()
    assert not is_locked(path) and num_descriptors() == before
    again = lock(path)
    assert is_locked(path)
    again.release()
    assert num_descriptors() == before


def test_a_file_that_is_gone_belongs_to_another_run(tmp_path: Path):
    with pytest.raises(UsageError, match=r"run\.h5\.part: another run is writing it"):
        lock(str(tmp_path / "run.h5.part"))


@pytest.mark.parametrize("has_links", [True, False])
def test_a_file_gets_a_free_place_or_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_links: bool):
    def link(source: str, target: str) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    if not has_links:
        monkeypatch.setattr(os, "link", link)
    first, second, place = (tmp_path / name for name in ("first", "second", "place"))
    first.write_text("1")
    second.write_text("2")
    put_in_free_place(str(first), str(place))
    assert place.read_text() == "1" and sorted(tmp_path.iterdir()) == [place, second]
    with pytest.raises(UsageError, match="place: another run is writing it"):
        put_in_free_place(str(second), str(place))
    assert place.read_text() == "1" and list(tmp_path.iterdir()) == [place]


def test_a_whole_file_replaces_the_one_that_it_extends_and_no_other(tmp_path: Path):
    new, place, before = tmp_path / "new", tmp_path / "place", num_descriptors()
    new.write_text("1")
    give_name(str(new), str(place))
    assert [path.name for path in tmp_path.iterdir()] == ["place"]
    new.write_text("2")
    with pytest.raises(FileExistsError, match="place has appeared meanwhile"):
        give_name(str(new), str(place), identity(str(new)))
    assert place.read_text() == "1"
    give_name(str(new), str(place), identity(str(place)))
    assert place.read_text() == "2" and not new.exists() and num_descriptors() == before


def test_a_name_is_of_a_file_until_another_takes_it(tmp_path: Path):
    path = tmp_path / "file"
    path.touch()
    with path.open() as file:
        assert is_at(str(path), file.fileno())
        path.rename(tmp_path / "other")
        assert not is_at(str(path), file.fileno())
        path.touch()
        assert not is_at(str(path), file.fileno())
    assert identity(str(tmp_path / "none")) is None


def test_what_is_no_file_to_read_is_told(tmp_path: Path):
    path = tmp_path / "file"
    assert str(path) in why_no_file(str(path))
    path.touch()
    assert why_no_file(str(path)).endswith("is not a readable HDF5 file: it is empty")
    path.write_text("x")
    assert why_no_file(str(path)) == ""
    assert why_no_file(str(tmp_path)).endswith("is a folder; name a file in it")
    assert why_no_file("/dev/null").endswith("is no file but a device, pipe or socket")
    (tmp_path / "loop").symlink_to("loop")
    assert "loop is a symbolic link that leads back to itself; remove it" in why_no_file(str(tmp_path / "loop"))
    (tmp_path / "lost").symlink_to("none.h5")
    assert why_no_file(str(tmp_path / "lost")).endswith("lost is a symbolic link to none.h5, which is not there")


def test_a_folder_that_was_made_goes_if_nothing_has_come_into_it(tmp_path: Path):
    empty, used = tmp_path / "empty", tmp_path / "used"
    for folder in (empty, used, empty):  # The second time it is there.
        make_folder(str(folder))
    assert empty.is_dir() and used.is_dir()
    (used / "run.h5").touch()
    remove_empty_folders()
    assert sorted(tmp_path.iterdir()) == [used]
    remove_empty_folders()


@pytest.mark.parametrize(
    ("error", "words"),
    [(OSError(errno.ENOLCK, "No locks available"), "No locks available"), (OSError("no such thing"), "no such thing")],
)
def test_why_files_cannot_be_locked_is_told_in_the_systems_words(monkeypatch, error: OSError, words: str):
    def acquire(descriptor: int) -> None:
        raise error

    monkeypatch.setattr(ownership, "acquire", acquire)
    assert why_no_locks(3) == words


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("", "--out must name a file, got ''"),
        ("-", "HDF5 cannot be written to stdout; use --out run.h5"),
        ("folder", "got the folder folder; use --out folder/run.h5"),
        ("folder/", "got the folder folder/; use --out folder/run.h5"),
        ("none/", "got the folder none/; use --out none/run.h5"),
        ("run.h5.part", ".part is for files that are not complete; use --out run.h5"),
        ("link", "--out link is a link to gone, which is not there"),
        ("/dev/null", " is no file but a device, pipe or socket"),
    ],
)
def test_what_cannot_name_an_output_is_refused_with_a_name_that_can(tmp_path, monkeypatch, name: str, words: str):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("gone")
    with pytest.raises(UsageError) as error:
        check_name(name)
    assert words in error.value.shown(as_flag)
