"""The file of a study keeps every sample, is never half written, and is not mistaken for another."""

import json
from dataclasses import replace
from pathlib import Path

import h5py
import pytest
from made_up_studies import FACTS, ORIGIN, RUN, edited, made_up, make_study

from mpi_rollout.bench.scaling.samples import Samples
from mpi_rollout.bench.scaling.study import StudyFile, check_same_study, read_study
from mpi_rollout.bench.tables import replaced
from mpi_rollout.errors import DataError, StorageError, UsageError

NEW_COLUMNS = ("asked_length", "fragment_length", "inference")
UPDATED = "2026-01-02T04:05:06+00:00"


@pytest.fixture
def file() -> StudyFile:
    return made_up(make_study(num_ranks=(1, 2, 4)), spread=0.1, failing=4)


def test_what_is_read_is_what_was_written(tmp_path: Path, file: StudyFile):
    file.write(str(tmp_path / "study.h5"), UPDATED)
    assert read_study(str(tmp_path / "study.h5")) == file


def test_a_study_before_its_first_job_can_be_written_and_read(tmp_path: Path):
    empty = StudyFile(make_study(), FACTS, ORIGIN, Samples())
    empty.write(str(tmp_path / "study.h5"), UPDATED)
    assert read_study(str(tmp_path / "study.h5")) == empty


def test_h5py_alone_reads_all_of_it(tmp_path: Path, file: StudyFile):
    file.write(str(tmp_path / "study.h5"), UPDATED)
    with h5py.File(tmp_path / "study.h5") as plain:
        attributes = dict(plain.attrs)
        jobs, ranks, parts = (plain[name][...] for name in ("jobs", "ranks", "parts"))
    assert (attributes["format"], attributes["format_version"]) == ("mpi_rollout-scaling", 1)
    assert attributes["base_case"] == "bare env.step loop over 512 envs, one rank"
    assert json.loads(attributes["study"])["run"] == RUN
    assert {name: attributes[name] for name in FACTS | ORIGIN} == FACTS | ORIGIN
    assert attributes["updated"] == UPDATED
    points = [(job["num_ranks"], job["repeat"], job["asked_length"].decode()) for job in jobs]
    assert points == [tuple(each) for each in file.study.order()]
    good = jobs["error"] == b""
    assert set(jobs["num_ranks"][~good]) == {4} and set(jobs["error"][~good]) == {b"exit code 70: no licence"}
    phases = sum(jobs[f"{name}_s"] for name in ("env", "idle", "exchange", "policy", "write"))
    assert phases == pytest.approx(jobs["seconds"])
    assert len(ranks) == jobs["num_ranks"][good].sum() and set(ranks["cores"]) == {b"0-63"}
    assert len(parts) == 5 * good.sum()


def test_a_study_of_before_there_were_fragments_was_done_in_lockstep(tmp_path: Path, file: StudyFile):
    path = tmp_path / "study.h5"
    file.write(str(path), UPDATED)
    with edited(path) as study:
        rows = study["jobs"][...]
        del study["jobs"]
        study["jobs"] = rows[[name for name in rows.dtype.names if name not in NEW_COLUMNS]]
        stored = json.loads(study.attrs["study"])
        del stored["fragment_lengths"]
        study.attrs["study"] = json.dumps(stored)
    assert read_study(str(path)) == file


def test_a_file_that_cannot_be_written_leaves_the_one_before(tmp_path: Path, file: StudyFile, monkeypatch):
    path = str(tmp_path / "study.h5")
    file.write(path, UPDATED)
    full = OSError(28, "No space left")
    monkeypatch.setattr("mpi_rollout.bench.tables.add_table", lambda *_: (_ for _ in ()).throw(full))
    with pytest.raises(StorageError, match=r"--out .*study\.h5: cannot write .*study\.h5\.new: .*No space left"):
        replace(file, samples=Samples()).write(path, UPDATED)
    monkeypatch.undo()
    assert read_study(path) == file and [each.name for each in tmp_path.iterdir()] == ["study.h5"]


def test_what_a_killed_writer_left_is_in_nobodys_way(tmp_path: Path, file: StudyFile):
    (tmp_path / "study.h5.new").write_bytes(b"half a file")
    file.write(str(tmp_path / "study.h5"), UPDATED)
    assert read_study(str(tmp_path / "study.h5")) == file and not (tmp_path / "study.h5.new").exists()


@pytest.mark.parametrize(
    ("attributes", "words"),
    [
        ({"format": "mpi_rollout"}, "is a rollout, not a study; `python -m mpi_rollout inspect "),
        ({"format": "other"}, "is no study of mpi_rollout, but of format 'other'"),
        ({}, "is no study of mpi_rollout"),
        ({"format": "mpi_rollout-scaling", "format_version": 2}, "has format version 2, this program knows 1"),
        ({"format": "mpi_rollout-scaling", "format_version": 1}, "is not a readable file of a study"),
    ],
)
def test_other_files_are_refused_with_what_they_are(tmp_path: Path, attributes, words):
    with h5py.File(tmp_path / "study.h5", "w") as other:
        other.attrs.update(attributes)
    with pytest.raises(DataError) as refusal:
        read_study(str(tmp_path / "study.h5"))
    assert words in str(refusal.value)


DAMAGE = {
    "attribute": "its attribute study cannot be None",
    "table": "there is no table parts",
    "column": "parts, row 0 has no bare_env_steps_per_s",
    "JSON": "its attribute study is no JSON",
    "option": "its attribute study has an unknown sizes",
    "type": "its attribute study: size cannot be '512'",
    "value": "what it holds is not what was written: its digest does not fit",
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_file_is_refused(tmp_path: Path, file: StudyFile, damage):
    path = str(tmp_path / "study.h5")
    file.write(path, UPDATED)
    with h5py.File(path, "a") as study:
        if damage == "attribute":
            del study.attrs["study"]
        elif damage == "JSON":
            study.attrs["study"] = "{"
        elif damage in ("option", "type"):
            changed = {"option": ('"size"', '"sizes"'), "type": ("512", '"512"')}
            study.attrs["study"] = study.attrs["study"].replace(*changed[damage])
        elif damage == "value":
            study["parts"][0] = (0, 1.0, 2.0)
        else:
            rows = study["parts"][...]
            del study["parts"]
            if damage == "column":
                study["parts"] = rows[["job", "env_steps_per_s"]]
    with pytest.raises(DataError, match=rf"study\.h5 is not a readable file of a study: {DAMAGE[damage]}"):
        read_study(path)


@pytest.mark.parametrize(("table", "column", "value"), [("jobs", "seconds", 0.0), ("parts", "env_steps_per_s", -1.0)])
def test_what_no_job_can_have_measured_is_refused(tmp_path: Path, file: StudyFile, table, column, value):
    file.write(str(tmp_path / "study.h5"), UPDATED)
    with edited(tmp_path / "study.h5") as study:
        rows = study[table][...]
        rows[column][-1] = value
        study[table][...] = rows
    with pytest.raises(DataError, match=rf"of a study: {table}, row \d+: {column} cannot be {value}"):
        read_study(str(tmp_path / "study.h5"))


def test_what_is_no_hdf5_file_or_not_there_is_refused(tmp_path: Path):
    (tmp_path / "study.h5").write_text("not HDF5")
    for name, words in (("study.h5", "is not a readable HDF5 file"), ("none.h5", "none.h5: no such file")):
        with pytest.raises(DataError, match=words):
            read_study(str(tmp_path / name))


def test_a_file_is_of_the_same_study_on_the_same_machine_by_the_same_program(file: StudyFile):
    check_same_study("study.h5", file, file.study, FACTS)
    with pytest.raises(UsageError) as refusal:
        now = FACTS | {"num_cores": 32, "commit": ""}
        check_same_study("study.h5", file, make_study("weak", (1, 2, 4), seed=1), now)
    assert str(refusal.value) == (
        "--out study.h5: it is of another study: the kind was strong, is weak; --envs-per-rank was 512, is 64; "
        "--seed was 0, is 1; num cores was 64, is 32; commit was abc1234, is unknown; "
        "give the same to continue it, or use another --out"
    )


def test_what_fails_while_a_file_is_written_leaves_the_one_before_and_nothing_beside_it(tmp_path: Path, file):
    path = tmp_path / "study.h5"
    file.write(str(path), UPDATED)
    with pytest.raises(KeyboardInterrupt), replaced(str(path)):
        raise KeyboardInterrupt
    assert read_study(str(path)) == file and list(tmp_path.iterdir()) == [path]


def test_a_mistake_of_ours_in_reading_is_no_damage(tmp_path: Path, file: StudyFile, monkeypatch: pytest.MonkeyPatch):
    file.write(str(tmp_path / "study.h5"), UPDATED)
    monkeypatch.setattr("mpi_rollout.bench.tables.Contents.study", lambda contents, *_: contents["a mistake"])
    with pytest.raises(TypeError):
        read_study(str(tmp_path / "study.h5"))
