"""A complete run is extended by the same command with more `--num-steps`: the bytes are those of one longer run."""

import hashlib
import os
from pathlib import Path

import pytest
from jobs import Job, Start, assert_same_bytes, datasets

from mpi_rollout.storage import ownership

pytestmark = pytest.mark.any_mpi

ENVS = ("--num-envs", "6", "--progress", "none")
RUN = ("--env-factory", "stopping_envs:Paced", *ENVS, "--out", "run.h5")
WHOLE = 400


def steps(num_steps: int) -> tuple[str, str]:
    return ("--num-steps", str(num_steps))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    job = Job(tmp_path_factory.mktemp("whole"))
    return datasets(job.collect(None, *RUN, *steps(WHOLE)))


@pytest.mark.mpi(2)
def test_an_extended_file_has_the_bytes_of_a_run_that_was_asked_for_all_at_once(job, whole, num_ranks):
    part, longer = (job.series([Start((*RUN, *steps(n)))])[0] for n in (13, 200))
    assert (part.code, longer.code) == (0, 0), longer.err
    result = job(num_ranks, *RUN, *steps(WHOLE))
    assert result.code == 0 and "run.h5 after 200 of 400 steps" in result.messages[0]
    assert_same_bytes(datasets(job.folder / "run.h5"), whole)
    assert sorted(os.listdir(job.folder)) == ["run.h5", "run.status.json"]


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_the_complete_file_is_there_until_the_longer_one_is_whatever_happens(job, whole):
    job.collect(None, *RUN, *steps(100))
    before = digest(job.folder / "run.h5")
    for _ in range(2):  # Killed when it has begun, and when it was continued.
        running = job.start(None, *RUN, *steps(WHOLE))
        running.wait_until(lambda: '"running"' in (job.folder / "run.status.json").read_text())
        running.kill()
        assert running.finish().code == -9
        assert digest(job.folder / "run.h5") == before
    extended, again = job.series([Start((*RUN, *steps(n))) for n in (WHOLE, WHOLE)])
    assert extended.code == 0, extended.err
    assert_same_bytes(datasets(job.folder / "run.h5"), whole)
    assert again.code == 0 and "nothing is left to do" in again.messages[0]


def test_what_cannot_be_extended_is_refused_with_the_reason_and_left_as_it_is(job):
    native = ("--env", "CartPole-v1", "--vectorization-mode", "vector_entry_point", *ENVS)
    runs = [
        (
            (*RUN, *steps(20)),
            (*RUN, *steps(10)),
            "more --num-steps or --num-episodes extend a complete file, fewer do not cut it",
        ),
        ((*RUN, *steps(10), "--no-trajectories"), (*RUN, *steps(20), "--no-trajectories"), "it has no trajectories"),
        ((*RUN, *steps(10), "--seed", "1"), (*RUN, *steps(20)), "--seed was 1, is 0"),
        (
            (*native, *steps(10)),
            (*native, *steps(20)),
            "the envs of a rank depend on each other and cannot be brought back",
        ),
    ]
    starts = [Start((*run, "--out", f"{i}.h5")) for i, pair in enumerate(runs) for run in pair[:2]]
    found = job.series(starts)
    for first, second, (*_, words) in zip(found[::2], found[1::2], runs, strict=True):
        assert first.code == 0, first.err
        assert second.code == 64 and len(second.messages) == 1 and words in second.messages[0], second.err
    assert sorted(os.listdir(job.folder)) == sorted(f"{i}.{end}" for i in range(4) for end in ("h5", "status.json"))


def test_an_extension_that_cannot_begin_leaves_the_complete_file_alone(job, whole):
    job.collect(None, *RUN, *steps(20))
    os.symlink("run.h5", job.folder / "link.h5")
    before = digest(job.folder / "run.h5")
    full = {"MPI_ROLLOUT_ANY_SIZE": ""}
    refused = job.series(
        [
            Start((*RUN, *steps(10**12)), environment=full),
            Start((*RUN, *steps(30), "--out", "link.h5")),
        ]
    )
    assert [each.code for each in refused] == [74, 64]
    assert "is a link; to extend the file give its name, --out " in refused[1].messages[0]
    assert digest(job.folder / "run.h5") == before
    assert sorted(os.listdir(job.folder)) == ["link.h5", "run.h5", "run.status.json"]


def test_another_file_that_has_the_name_by_then_is_not_replaced(tmp_path):
    old, new = tmp_path / "run.h5", tmp_path / "run.h5.part"
    old.write_bytes(b"old")
    replaces = ownership.identity(str(old))
    old.rename(tmp_path / "away")
    old.write_bytes(b"another")
    new.write_bytes(b"longer")
    with pytest.raises(FileExistsError):
        ownership.give_name(str(new), str(old), replaces)
    ownership.give_name(str(new), str(old), ownership.identity(str(old)))
    assert old.read_bytes() == b"longer"
