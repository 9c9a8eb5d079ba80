"""Files are where they were asked for, wherever envs go meanwhile."""

import json

import pytest
from jobs import Job, assert_same_bytes, datasets

pytestmark = pytest.mark.any_mpi

POLICY = "from stopping_envs import counting as act\n"


def run_of(where: str, out: str = "results/run.h5") -> tuple[str, ...]:
    env = ("--env-factory", "moving_envs:Moving", "--env-kwargs", json.dumps({"where": where}))
    sizes = ("--num-envs", "5", "--num-steps", "60")
    return (*env, *sizes, "--policy", "./mine.py:act", "--progress", "none", "--out", out)


def files_in(job: Job) -> list[str]:
    """What there is besides folders."""
    return sorted(str(path.relative_to(job.folder)) for path in job.folder.rglob("*") if path.is_file())


@pytest.mark.mpi
@pytest.mark.parametrize(("where", "num_ranks"), [("made", 2), ("reset", 3), ("step", 1)])
def test_an_output_is_where_it_was_asked_for_and_is_found_again(job: Job, num_ranks: int, where: str):
    (job.folder / "mine.py").write_text(POLICY)
    out = job.folder / "results/run.h5"
    first, again = job(num_ranks, *run_of(where)), job(num_ranks, *run_of(where))
    assert first.code == 0 and f"file: {out} (complete)" in first.out, first.err
    assert again.code == 0 and f"{out} is there already, of the same run and complete" in again.err
    assert files_in(job) == ["mine.py", "results/run.h5", "results/run.status.json"]
    assert json.loads((job.folder / "results/run.status.json").read_text())["file"] == str(out)


@pytest.mark.mpi(2)
@pytest.mark.parametrize("where", ["made", "step"])
def test_a_run_that_was_killed_continues_from_any_folder(job: Job, num_ranks: int, where: str):
    """And its data are those of envs that go elsewhere, or nowhere."""
    (job.folder / "mine.py").write_text(POLICY)
    killed = job(num_ranks, *run_of(where, "run.h5"), STOP_AT="kill:30", STOP_PAUSE="0.6")
    assert killed.code != 0 and (job.folder / "run.h5.part").exists()
    elsewhere = job.folder / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "mine.py").write_text(POLICY)
    result = Job(elsewhere, job.forks)(num_ranks, *run_of(where, "../run.h5"))
    assert result.code == 0, result.err
    whole = job.collect(None, *run_of("nowhere")[:-2], out="whole.h5")
    assert_same_bytes(datasets(job.folder / "run.h5"), datasets(whole))


def test_a_file_is_verified_and_the_next_one_after_a_replay_that_went_elsewhere(job: Job):
    (job.folder / "mine.py").write_text(POLICY)
    assert job(None, *run_of("made", "run.h5")).code == 0
    result = job(None, "verify", "run.h5", "run.h5", "--replay", "2", "--trust")
    assert result.code == 0 and result.out.count("2 episodes, ") == 2, result.err


TRAINER = """
import mpi_rollout, moving_envs

options = {"env_kwargs": {"where": "made"}, "record": "run.h5"}
with mpi_rollout.connect(moving_envs.Moving, 4, **options, policy="mine.py:make_policy") as envs:
    if envs is not None:
        envs.reset(seed=1)
        envs.collect(3)
"""


@pytest.mark.mpi(1, 2)
def test_the_files_of_a_trainer_are_where_it_was_when_it_connected(job: Job, num_ranks: int):
    (job.folder / "mine.py").write_text(
        "import numpy as np\n\n\nclass make_policy:\n"
        "    def act(self, observations, env_indices, uniforms):\n        return np.full(len(env_indices), 2)\n"
    )
    result = job.script(num_ranks, TRAINER)
    assert result.code == 0, result.err
    assert (job.folder / "run.h5").exists()


def test_a_policys_file_is_where_the_trainer_was_when_it_connected(job: Job):
    (job.folder / "policy.onnx").write_bytes(b"junk")
    result = job.script(None, TRAINER.replace("mine.py:make_policy", "policy.onnx"))
    assert "UsageError: policy policy.onnx: " in result.err and "cannot read this file" not in result.err
