"""Runs that fail or are stopped: how they are started, and what they must leave."""

import json
import os
import re
import time
from pathlib import Path

import h5py
import numpy as np
from jobs import WHOLE, Job, Result, Running, are_gone, datasets, is_hydra

HOST = os.uname().nodename
ENVS = ("--num-envs", "6", "--progress", "none")
OUT = ("--out", "run.h5")
LATE = 800  # The fourth block of 256 steps can only be begun when the first one is committed.
PACED = ("--env-factory", "failing_envs:paced", "--env-kwargs", '{"sleep_s": 0.0002}')
LAUNCHED_S = 60.0  # More than a job takes to start and fail, less than the time that ranks have to start.
SOON_S = 8.0  # It is half a second; what does not end by itself is ended after 10 s.


def kwargs(**values) -> tuple[str, str]:
    return "--env-kwargs", json.dumps(values)


def fails(how: str, rank: int | None = None, after: int = 2, num_steps: int = 20, **more) -> tuple[str, ...]:
    """The arguments of a run that fails."""
    steps = ("--num-steps", str(num_steps))
    env = ("--env-factory", "failing_envs:failing", *kwargs(how=how, rank=rank, after=after, **more))
    return *env, *steps, *ENVS, *OUT


def envs_of(rank: int, num_ranks: int) -> range:
    return range(rank * 6 // num_ranks, (rank + 1) * 6 // num_ranks)


def committed(path: Path) -> int:
    """The number of steps that a file says it has; 0 where it cannot be read yet."""
    try:
        with h5py.File(path, libver="latest", swmr=True) as file:
            return int(file["trajectories"].attrs["num_steps"])
    except (OSError, KeyError):
        return 0


def assert_begins(path: Path, whole: dict[str, np.ndarray], num_steps: int | None = None) -> int:
    """The committed steps of a file are those of the whole run, and `num_steps` in number; return the number."""
    found, count = datasets(path), committed(path)
    assert num_steps in (None, count)
    common = min(count, WHOLE)
    for name in found.keys() - {"/episodes"}:
        rows = common + name.startswith("observations")
        assert len(found[name]) >= count + name.startswith("observations")
        assert np.array_equal(found[name][:rows], whole[name][:rows]), name
    episodes, ended = found["/episodes"], found["/episodes"]["terminated"] | found["/episodes"]["truncated"]
    ends = whole["/episodes"]["start"] + whole["/episodes"]["length"]
    expected = whole["/episodes"][
        (ends <= common) & (whole["/episodes"]["terminated"] | whole["/episodes"]["truncated"])
    ]
    assert np.array_equal(episodes[ended & (episodes["start"] + episodes["length"] <= common)], expected)
    return count


def assert_ended_soon(folder: Path) -> None:
    """The job was over, with all its processes, soon after its first env had failed."""
    assert time.time() - float((folder / "failed_at").read_text()) < SOON_S
    assert are_gone(folder)  # MPICH's launcher ends some 10 ms before the ranks that it has killed.


def is_code(result: Result, code: int) -> bool:
    """The exit code is the one expected of a rank that ended the job.

    MPICH's launcher at times kills the rank that has asked for it before it could leave, and tells of that instead.
    """
    return result.code == code or (is_hydra() and result.code in (9, 9 | code))


def outputs(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("run.h5*"))


def start_long(job: Job, num_ranks: int | None, *more: str) -> Running:
    """Start a run that does not end by itself."""
    return job.start(num_ranks, *PACED, "--num-steps", "100000000", *ENVS, *OUT, *more)


def assert_stopped(result: Result, job: Job, whole: dict[str, np.ndarray], name: str) -> None:
    assert result.code == 75
    assert result.num_tracebacks == 0
    [message] = result.messages
    part = re.escape(str(job.folder / "run.h5.part"))
    found = re.fullmatch(
        rf"rank 0 \({HOST}\), step (\d+): stopped by {name}; the ([\d,]+) steps? before (?:is|are) in {part}; "
        "the same command continues",
        message,
    )
    assert found and found[1] == found[2].replace(",", "")
    assert_begins(job.folder / "run.h5.part", whole, num_steps=int(found[1]))
    h5py.File(job.folder / "run.h5.part").close()  # As it opens without SWMR, it was closed in good order.
