"""Studies made up of outcomes whose figures are known, as the jobs of a real one would print them."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from fake_launcher import outcome

from mpi_rollout.bench.plan import JobOptions
from mpi_rollout.bench.scaling.samples import Samples
from mpi_rollout.bench.scaling.study import Study, StudyFile
from mpi_rollout.storage.reader import contents_digest

RUN = {
    "env": "Acrobot-v1", "env_factory": None, "env_kwargs": {}, "num_steps": 1000, "seed": 0, "policy": "random",
    "vectorization_mode": "sync", "mode": "sync", "num_groups": 1, "trajectories": False,
}  # fmt: skip
FACTS = {"cpu_model": "Made-up 9000", "num_cores": 64, "versions": "mpi_rollout 0.1.0", "commit": "abc1234"}
ORIGIN = {"command": "python -m mpi_rollout scaling", "host": "node7", "started": "2026-01-02T03:04:05+00:00"}


@contextmanager
def edited(path: Path) -> Iterator[h5py.File]:
    """A study's file to be changed, as if it had been written so."""
    with h5py.File(path, "a") as file:
        yield file
        file.attrs["digest"] = contents_digest(file)


def make_study(kind: str = "strong", num_ranks: tuple[int, ...] = (1, 2), repeats: int = 2, **run: Any) -> Study:
    return Study(kind, num_ranks, 512 if kind == "strong" else 64, RUN | run, JobOptions(repeats))


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
    rng = np.random.default_rng(3)
    samples = Samples()
    for point in study.order():
        num_envs = study.num_envs(point.num_ranks)
        if point.num_ranks == failing:
            samples = samples.with_failure(point, num_envs, ORIGIN["started"], "exit code 70: no licence")
        else:
            slower = 1 + abs(rng.normal(0, spread)) if spread else 1.0
            found = outcome(point.num_ranks, num_envs, study.run["num_steps"], slower, num_cores, **more)
            asked = point.fragment_length
            if asked != "1":
                length = 256 if asked == "auto" else int(asked)
                found |= {"fragment_length": length, "seconds": found["seconds"] * (1 - length / 2000)}
            samples = samples.with_outcome(point.repeat, ORIGIN["started"], num_cores, found, asked)
    return StudyFile(study, FACTS | {"num_cores": num_cores}, ORIGIN, samples)
