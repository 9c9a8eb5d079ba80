"""A new data set gets its place when it is whole, and nobody else's place."""

import os
from pathlib import Path

import pytest

from mpi_rollout.commands import export
from mpi_rollout.commands.export import Place, check_id
from mpi_rollout.errors import StorageError, UsageError


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where Minari looks for data sets."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "sets"))
    return tmp_path / "sets"


def made(dataset_id: str, text: str = "new", overwrites: bool = False) -> Place:
    place = Place(dataset_id, overwrites)
    place.make()
    Path(place.data, "metadata.json").write_text(text)
    return place


@pytest.mark.parametrize("dataset_id", ["a-v0", "cartpole/random-v0", "my_lab/cartpole/a-b_c-v12", "été-v1"])
def test_ids_of_minari_are_known(dataset_id: str):
    check_id(dataset_id)


@pytest.mark.parametrize(
    ("dataset_id", "words"),
    [
        *((wrong, "cartpole/random-v0") for wrong in ("", "a b-v0", "x/a-v0", "/aa/b-v0", "aa//b-v0", "aa/../b-v0")),
        ("cartpole/random", "use cartpole/random-v0"),
        *((hiding, "use another namespace") for hiding in ("data/a-v0", "lab/data/a-v0")),
    ],
)
def test_other_ids_are_refused_with_a_way_out(dataset_id: str, words: str):
    with pytest.raises(UsageError, match=words):
        check_id(dataset_id)


def test_a_data_set_appears_when_it_is_published(root: Path):
    place = made("lab/cartpole/random-v0")
    assert not (root / "lab/cartpole/random-v0").exists()
    place.publish(), place.remove()
    assert (root / "lab/cartpole/random-v0/data/metadata.json").read_text() == "new"
    assert sorted(os.listdir(root / "lab/cartpole")) == ["namespace_metadata.json", "random-v0"]
    assert (root / "lab/namespace_metadata.json").read_text() == "{}"


def test_it_is_on_the_disk_when_it_appears(root: Path, monkeypatch: pytest.MonkeyPatch):
    place, synced = made("lab/random-v0"), list[tuple[str, bool]]()
    monkeypatch.setattr(export, "_sync", lambda path: synced.append((path, os.path.exists(place.path))))
    place.publish()
    assert (os.path.join(place.data, "metadata.json"), False) in synced and (str(root / "lab"), True) in synced


def test_nothing_is_left_of_one_that_failed(root: Path):
    made("lab/cartpole/random-v0").remove()
    assert not root.exists()


def test_folders_that_others_use_stay(root: Path):
    place = made("lab/random-v0")
    made("lab/other-v0").publish()
    place.remove()
    assert sorted(os.listdir(root / "lab")) == ["namespace_metadata.json", "other-v0"]


def test_a_taken_id_is_refused_with_the_next_version(root: Path):
    made("lab/random-v0").publish(), made("lab/random-v1").publish()
    with pytest.raises(UsageError, match="use lab/random-v2, or --overwrite"):
        Place("lab/random-v0")


def test_overwriting_replaces_the_whole_data_set(root: Path):
    made("lab/random-v0", "old").publish()
    (root / "lab/random-v0/more").write_text("")
    place = made("lab/random-v0", "new", overwrites=True)
    assert (root / "lab/random-v0/data/metadata.json").read_text() == "old"
    place.publish(), place.remove()
    assert (root / "lab/random-v0/data/metadata.json").read_text() == "new"
    assert os.listdir(root / "lab/random-v0") == ["data"] and len(os.listdir(root / "lab")) == 2


def test_one_that_came_meanwhile_stays(root: Path):
    late = made("lab/random-v0", "late")
    made("lab/random-v0", "first").publish()
    with pytest.raises(UsageError, match="another id"):
        late.publish()
    late.remove()
    assert (root / "lab/random-v0/data/metadata.json").read_text() == "first"


def test_a_folder_that_is_no_data_set_is_never_overwritten(root: Path):
    made("lab-v0/random-v0").publish()
    with pytest.raises(UsageError, match="no data set"):
        Place("lab-v0", overwrites=True)


def test_a_data_set_has_no_others_in_it(root: Path):
    made("random-v0").publish()
    with pytest.raises(UsageError, match="random-v0 is a data set"):
        Place("random-v0/more-v0")


def test_what_a_killed_export_left_is_removed(root: Path):
    dead = made("lab/random-v0").temporary
    os.rename(dead, dead.removesuffix(str(os.getpid())) + "999999999")
    made("lab/random-v0").publish()
    assert sorted(os.listdir(root / "lab")) == ["namespace_metadata.json", "random-v0"]


def test_a_place_that_cannot_be_written_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "file" / "sets"))
    with pytest.raises(StorageError, match="export MINARI_DATASETS_PATH=FOLDER"):
        Place("random-v0").make()
