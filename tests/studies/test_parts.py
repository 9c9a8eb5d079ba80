"""Studies whose numbers of ranks are measured apart, each by a command of its own, and put together."""

import json
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
from jobs import Job, Result
from made_up_studies import FACTS, made_up, make_study
from studies import LAUNCHER, STUDY, started, stored, study

from mpi_rollout.errors import DataError
from mpi_rollout.studies.study_file import StudyFile, gathered, part_of

RANKS = (1, 2, 4)
NOW = "2026-01-02T03:04:05+00:00"


def gather(job: Job) -> Result:
    return job(None, "scaling", "gather", "study.json")


def write_parts(folder: Path, whole: StudyFile, **facts: dict) -> str:
    """A file for each number of ranks; return the path of the study."""
    out = str(folder / "study.json")
    for num_ranks in whole.study.num_ranks:
        path = part_of(out, num_ranks)
        Path(path).parent.mkdir(exist_ok=True)
        part = whole.of({point for point in whole.done if point.num_ranks == num_ranks})
        replace(part, facts=FACTS | facts.get(f"of_{num_ranks}", {})).write(path, NOW)
    return out


def test_parts_put_together_are_the_study_done_at_once(job: Job):
    for num_ranks in reversed(RANKS):
        result = study(job, "--only", str(num_ranks))
        assert result.code == 0, result.err
        assert result.out.splitlines()[-1] == f"file: study.json.parts/{num_ranks}.json"
    assert started(job) == ["4", "4", "4", "2", "2", "2", "1", "1", "1"]  # The first of each is the warm-up.
    result = gather(job)
    assert result.code == 0, result.err
    found = stored(job)
    assert found.done == set(found.study.order()) and len(found.samples) == 6
    assert (job.folder / "log").read_text().count("\n") == 9
    at_once = study(job, "--out", "at-once.json")
    apart = "each number of ranks was measured by a command of its own, not in turns with the others"
    told = [line for line in result.out.splitlines() if not line.startswith(apart)]
    assert len(told) == len(result.out.splitlines()) - 1
    # The launcher's figures are always the same.
    assert told == at_once.out.replace("at-once.json", "study.json").splitlines()
    (job.folder / "study.json.parts" / "2.json").unlink()  # What was put together before stays.
    assert gather(job).code == 0 and len(stored(job).samples) == 6


def test_of_a_point_that_two_files_have_the_part_is_taken(tmp_path):
    whole = made_up(make_study(num_ranks=RANKS))
    out = write_parts(tmp_path, whole)
    made_up(make_study(num_ranks=RANKS), spread=0.5).write(out, NOW)
    found = gathered(out)
    assert found is not None and {*found.samples} == {*whole.samples}


def test_what_is_missing_is_said_and_the_rest_put_together(job: Job):
    for num_ranks in (1, 4):
        study(job, "--only", str(num_ranks))
    result = gather(job)
    assert result.code == 75
    assert result.messages == [
        "2 of 6 jobs are missing, of 2 ranks; the command that began the study does what is left"
    ]
    assert {each.point.num_ranks for each in stored(job).samples} == {1, 4} and "file: study.json" in result.out
    left = study(job, "--dry-run")
    assert [line.split(" -n ")[1].split()[0] for line in left.out.splitlines()] == ["2"] * 3
    assert study(job, "--only", "2").code == 0 and gather(job).code == 0
    assert study(job, "--dry-run").out.strip() == ""


def test_a_study_in_parts_is_continued_as_a_whole(job: Job):
    study(job, "--only", "4")
    (job.folder / "log").unlink()
    assert study(job).code == 0
    assert sorted(started(job)) == ["1", "1", "2", "2", "2"] and len(stored(job).samples) == 6


def test_jobs_that_failed_are_told_of_and_done_again_if_one_asks_for_it(job: Job):
    results = [study(job, "--only", str(num_ranks), FAIL="2") for num_ranks in RANKS]
    assert [result.code for result in results] == [0, 70, 0]
    again = "and the command that began the study does them again with --redo-failed"
    assert results[1].messages[-1] == f"2 of 2 jobs failed; study.json.parts/2.json has their errors, {again}"
    result = gather(job)
    assert (result.code, result.messages) == (70, [f"2 of 6 jobs failed; study.json has their errors, {again}"])
    assert study(job, "--dry-run").out.strip() == ""
    (job.folder / "log").unlink()
    assert json.loads(study(job, "--dry-run", "--json").out) == {"jobs": [], "warm_up": None, "num_failed": 2}
    left = study(job, "--dry-run", "--redo-failed")
    found = json.loads(study(job, "--dry-run", "--redo-failed", "--json").out)
    assert [found["warm_up"], *(each["command"] for each in found["jobs"])] == left.out.splitlines()
    assert [(each["num_ranks"], each["repeat"]) for each in found["jobs"]] == [(2, 0), (2, 1)]
    assert found["num_failed"] == 0
    assert study(job, "--only", "2", "--redo-failed").code == 0 and started(job) == ["2", "2", "2"]
    assert gather(job).code == 0 and stored(job).failed == set() and len(stored(job).samples) == 6


def test_a_damaged_part_is_named_with_the_way_out(tmp_path):
    out = write_parts(tmp_path, made_up(make_study(num_ranks=RANKS)))
    Path(part_of(out, 2)).write_bytes(b"no JSON")
    with pytest.raises(DataError, match=r"2\.json is no study, .*; move it away, and the command"):
        gathered(out)


def test_a_part_of_another_study_is_refused_before_any_job(job: Job):
    study(job, "--only", "4")
    (job.folder / "log").unlink()
    result = study(job, "--only", "2", "--num-steps", "7")
    assert result.code == 64 and not (job.folder / "log").exists()
    assert result.messages == [
        "--out study.json: it is of another study: --num-steps was 1000, is 7; give the same to continue it, or use "
        "another --out"
    ]
    assert study(job, "--dry-run", "--num-steps", "7").code == 64


def test_parts_from_machines_of_two_kinds_are_not_put_together(tmp_path):
    out = write_parts(tmp_path, made_up(make_study(num_ranks=RANKS)), of_4={"cpu_model": "Made-up 10000"})
    with pytest.raises(DataError) as refusal:
        gathered(out)
    assert f"{part_of(out, 1)} and {part_of(out, 4)} cannot be put together: cpu model was Made-up 9000, is" in str(
        refusal.value
    )
    assert "--constraint" in str(refusal.value)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("strong", *STUDY, "--only", "3"), "--only must be one of --ranks (1, 2, 4), got 3"),
        (("gather", "study.json"), "there is nothing of a study in study.json.parts; `scaling strong --only R`"),
        (("gather", "no/study.json"), "mkdir -p no"),
    ],
)
def test_bad_parts_are_refused_in_one_line(job: Job, arguments, words):
    result = job(None, "scaling", *arguments)
    assert result.code in (64, 65, 74) and len(result.messages) == 1 and words in result.messages[0]


def test_a_folder_for_parts_that_cannot_be_made_is_told(job: Job):
    (job.folder / "study.json.parts").write_text("")
    result = study(job, "--only", "2")
    assert result.code == 74
    assert "cannot make the folder study.json.parts/2.json.job: Not a directory" in result.messages[0]


def test_a_dry_run_of_a_part_has_the_commands_of_the_part(job: Job):
    result = study(job, "--only", "2", "--dry-run")
    commands = [shlex.split(line) for line in result.out.splitlines()]
    assert [command[3] for command in commands] == ["2"] * 3
    assert commands[0][:3] == [*shlex.split(LAUNCHER), "-n"]
    assert any("study.json.parts/2.json.job/" in word for word in commands[0])
