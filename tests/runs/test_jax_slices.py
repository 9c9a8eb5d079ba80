"""Runs of functional envs in JAX: the same bytes on any ranks."""

from pathlib import Path

import pytest
from jobs import Job, assert_same_bytes, datasets, once

pytest.importorskip("jax")

RUN = ("--env-factory", "jax_envs:hops", "--vectorization-mode", "native", "--num-envs", "7", "--num-steps", "80")
WAYS = [(), ("--fragment-length", "9", "--policy-on", "workers")]


@pytest.fixture(scope="module")
def collected(tmp_path_factory: pytest.TempPathFactory):
    """The files of all ways on some ranks; one job for all of them."""

    @once
    def of(num_ranks: int) -> list[Path]:
        job = Job(tmp_path_factory.mktemp("jax"))
        files = [job.folder / f"{number}.h5" for number in range(len(WAYS))]
        quiet = ("--wait", "sleep", "--progress", "none")
        commands = [(*RUN, *way, *quiet, "--out", file.name) for way, file in zip(WAYS, files, strict=True)]
        assert job.train(num_ranks, "runs", commands) == [0] * len(commands)
        return files

    return of


@pytest.mark.any_mpi
@pytest.mark.mpi(1, 2, 3)
def test_the_data_do_not_depend_on_the_ranks(collected, num_ranks: int):
    first = datasets(collected(1)[0])
    for path in collected(num_ranks):
        assert_same_bytes(datasets(path), first)


@pytest.mark.any_mpi
@pytest.mark.mpi(2)
def test_a_run_is_extended_by_taking_its_history_again(job: Job, collected, num_ranks: int):
    *same, num_steps = RUN
    quiet = ("--wait", "sleep", "--progress", "none", "--out", "run.h5")
    assert job(3, *same, "37", *quiet).code == 0
    result = job(num_ranks, *same, num_steps, *quiet)
    assert result.code == 0 and "took 37 steps again" in result.err
    assert_same_bytes(datasets(job.folder / "run.h5"), datasets(collected(1)[0]))
