"""Studies made up of outcomes whose figures are known, as the jobs of a real one would print them."""

from dataclasses import replace
from typing import Any

import numpy as np
from fake_launcher import outcome

from mpi_rollout.studies.jobs import JobOptions
from mpi_rollout.studies.study import Sample, Study, sample_of, scaling_points
from mpi_rollout.studies.study_file import StudyFile

RUN = {
    "env": "Acrobot-v1", "env_factory": None, "env_kwargs": {}, "num_steps": 1000, "seed": 0, "policy": "random",
    "vectorization_mode": "sync", "batch_size": None, "num_groups": 1, "trajectories": False,
}  # fmt: skip
FACTS = {"cpu_model": "Made-up 9000", "num_cores": 64, "versions": "mpi_rollout 0.1.0", "commit": "abc1234"}
ORIGIN = {"command": "python -m mpi_rollout scaling", "host": "node7", "started": "2026-01-02T03:04:05+00:00"}


def make_study(
    kind: str = "strong",
    num_ranks: tuple[int, ...] = (1, 2),
    repeats: int = 2,
    lengths: tuple[str, ...] = ("1",),
    **run: Any,
) -> Study:
    points = scaling_points(num_ranks, lengths)
    return Study(kind, points, 512 if kind == "strong" else 64, RUN | run, JobOptions(repeats))


def made_up(
    study: Study, num_cores: int = 64, spread: float = 0.0, failing: int | None = None, **more: Any
) -> StudyFile:
    """A whole study of known figures.

    Parameters
    ----------
    spread
        The jobs' times are longer than they should be, by a normal deviate of this size, relative.
    failing
        A number of ranks whose jobs fail.
    more
        What all outcomes have otherwise.
    """
    rng, samples = np.random.default_rng(3), []
    for point in study.order():
        num_envs = study.num_envs(point.num_ranks)
        if point.num_ranks == failing:
            samples.append(Sample(point, num_envs, ORIGIN["started"], "exit code 70: no licence"))
            continue
        slower = 1 + abs(rng.normal(0, spread)) if spread else 1.0
        found = outcome(point.num_ranks, num_envs, study.run["num_steps"], slower, num_cores, **more)
        if point.length != "1":
            length = 256 if point.length == "auto" else int(point.length)
            found |= {"fragment_length": length, "seconds": found["seconds"] * (1 - length / 2000)}
        samples.append(sample_of(point, ORIGIN["started"], num_cores, found))
    return StudyFile(study, FACTS | {"num_cores": num_cores}, ORIGIN, tuple(samples))


def with_outcome(file: StudyFile, **changed: Any) -> StudyFile:
    """The study with only one job of one rank, and one of two whose outcome is changed."""
    samples = [
        sample_of(replace(point, repeat=0), "", 64, outcome(point.num_ranks, 512, 1000, **more))
        for point, more in zip(file.study.points, ({}, changed), strict=True)
    ]
    return replace(file, samples=tuple(samples))
