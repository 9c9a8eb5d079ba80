"""The file of a study keeps every sample, is never half written, and is not mistaken for another."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from made_up_studies import FACTS, ORIGIN, RUN, made_up, make_study

from mpi_rollout.errors import DataError, StorageError, UsageError
from mpi_rollout.studies.report import title
from mpi_rollout.studies.scaling import Measurement
from mpi_rollout.studies.study_file import StudyFile, _digest, read_study

UPDATED = "2026-01-02T04:05:06+00:00"


@pytest.fixture
def file() -> StudyFile:
    return made_up(make_study(num_ranks=(1, 2, 4)), spread=0.1, failing=4)


def test_what_is_read_is_what_was_written_also_before_the_first_job(tmp_path: Path, file: StudyFile):
    for each in (file, StudyFile(make_study(), FACTS, ORIGIN)):
        each.write(str(tmp_path / "study.json"), UPDATED)
        assert read_study(str(tmp_path / "study.json")) == each


def test_json_alone_reads_samples_base_case_spread_and_machine(tmp_path: Path, file: StudyFile):
    file.write(str(tmp_path / "study.json"), UPDATED)
    plain = json.loads((tmp_path / "study.json").read_text())
    assert (plain["format"], plain["format_version"], plain["updated"]) == ("mpi_rollout-study", 1, UPDATED)
    assert plain["base_case"] == "bare env.step loop over 512 envs, one rank"
    assert (plain["study"]["run"], plain["facts"], plain["origin"]) == (RUN, FACTS, ORIGIN)
    points = [(each["point"]["num_ranks"], each["point"]["repeat"]) for each in plain["samples"]]
    assert points == [(each.num_ranks, each.repeat) for each in file.study.order()]
    errors = {(each["point"]["num_ranks"], each["error"]) for each in plain["samples"]}
    assert errors == {(1, ""), (2, ""), (4, "exit code 70: no licence")}
    for each in plain["samples"]:
        phases = sum(each[f"{name}_s"] for name in ("env", "idle", "exchange", "policy", "write"))
        assert phases == pytest.approx(each["seconds"])
        assert len(each["limit"]) == (0 if each["error"] else 5)


def test_a_file_that_cannot_be_written_leaves_the_one_before_and_nothing_beside_it(tmp_path: Path, file, monkeypatch):
    path = str(tmp_path / "study.json")
    file.write(path, UPDATED)
    (tmp_path / "study.json.new").write_bytes(b"what a killed writer left")
    for error, expected in ((OSError(28, "No space left"), StorageError), (KeyboardInterrupt(), KeyboardInterrupt)):
        monkeypatch.setattr("os.fsync", lambda _, error=error: (_ for _ in ()).throw(error))
        with pytest.raises(expected) as raised:
            replace(file, samples=()).write(path, UPDATED)
        assert expected is KeyboardInterrupt or str(raised.value).endswith("study.json.new: No space left")
        assert read_study(path) == file and [each.name for each in tmp_path.iterdir()] == ["study.json"]


@pytest.mark.parametrize(
    ("contents", "words"),
    [
        ("[1]", "is no study of mpi_rollout"),
        ('{"format": "other"}', "is no study of mpi_rollout"),
        ('{"format": "mpi_rollout-study", "format_version": 2}', "has format version 2, this program knows 1"),
        ("{", "is no study, which is a file of JSON; if it is a rollout, `python -m mpi_rollout inspect "),
        ("[" * 100_000, "is no study, which is a file of JSON"),
    ],
)
def test_other_files_are_refused_with_what_they_are(tmp_path: Path, contents: str, words: str):
    (tmp_path / "study.json").write_text(contents)
    with pytest.raises(DataError) as refusal:
        read_study(str(tmp_path / "study.json"))
    assert words in str(refusal.value)


def _without(place: dict, name: str) -> None:
    del place[name]


DAMAGE = {
    "'study'": lambda plain: _without(plain, "study"),
    "it has no host": lambda plain: _without(plain["origin"], "host"),
    "Study.__init__.. got an unexpected keyword argument 'sizes'": lambda plain: plain["study"].update(sizes=1),
    "'512' should be int": lambda plain: plain["study"].update(size="512"),
    "Sample.__init__.. got an unexpected keyword argument 'ranks'": lambda plain: plain["samples"][0].update(ranks=3),
    "zip.. argument 2 is longer than argument 1": lambda plain: plain["samples"][0].update(limit=[[1.0]]),
    "-n 1 --fragment-length 1, repeat 0: no job can have measured 0 or": lambda plain: plain["samples"][0].update(
        seconds=0.0
    ),
    "-n 1 .* no job can have measured -1 or": lambda plain: plain["samples"][0].update(limit=[[-1.0, 2.0]]),
    "--num-envs must be at least the largest": lambda plain: plain["study"].update(size=1),
}


@pytest.mark.parametrize("words", DAMAGE)
def test_a_damaged_file_is_refused(tmp_path: Path, file: StudyFile, words: str):
    path = tmp_path / "study.json"
    file.write(str(path), UPDATED)
    plain = json.loads(path.read_text())
    plain["samples"].sort(key=lambda each: each["point"]["num_ranks"])
    DAMAGE[words](plain)
    path.write_text(json.dumps(plain))
    for match in ("what it holds is not what was written: its digest does not fit", words):
        with pytest.raises(DataError, match=rf"study\.json is not a readable file of a study: {match}"):
            read_study(str(path))
        plain.pop("digest", None)
        path.write_text(json.dumps(plain | {"digest": _digest(plain)}))


def test_a_file_is_of_the_same_study_on_the_same_machine_by_the_same_program(file: StudyFile):
    assert Measurement(file.study, "study.json").start(file, file) == file
    with pytest.raises(UsageError) as refusal:
        now = StudyFile(make_study("weak", (1, 2, 4), seed=1), FACTS | {"num_cores": 32, "commit": ""}, ORIGIN)
        Measurement(now.study, "study.json").start(file, now)
    assert str(refusal.value) == (
        "--out study.json: it is of another study: the kind was strong, is weak; --envs-per-rank was 512, is 64; "
        "--seed was 0, is 1; num cores was 64, is 32; commit was abc1234, is unknown; "
        "give the same to continue it, or use another --out"
    )


@pytest.mark.parametrize("name", [*(f"strong-{env}" for env in ("acrobot", "cartpole", "humanoid")), "weak", "model"])
def test_the_measured_studies_are_read_and_have_a_title(name: str):
    file = read_study(str(Path(__file__).parents[2] / "results" / "measured" / f"{name}.json"))
    assert file.done == {*file.study.order()} and not file.failed
    assert title(file).startswith(f"{file.study.kind} scaling of {file.study.env_name}, ")
