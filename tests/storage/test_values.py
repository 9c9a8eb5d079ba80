"""Observations outside of their space, and values that are not finite: found, said once, counted in the file."""

import json
import re
import tracemalloc
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from jobs import Job, Start
from written_data import Feed, ending, quiet
from wrong_values import Wrong

from mpi_rollout.core.spaces import Bounds
from mpi_rollout.envs.faults import OnFault
from mpi_rollout.envs.loop import LoopVectorEnv
from mpi_rollout.errors import ContentError, DataError
from mpi_rollout.storage.recovery import recover
from mpi_rollout.storage.values import ValueCheck, wrong_in
from mpi_rollout.storage.verification import verify

RUN = ("--env-factory", "wrong_values:Wrong", "--num-envs", "4", "--num-steps", "100", "--progress", "none")
COUNTS = {  # Of ten episodes and a reset row between each: rows, first step, its env.
    "observations/x": {"out_of_bounds": [10, 4, 3], "not_finite": [0, -1, -1]},
    "observations/n": {"out_of_bounds": [10, 2, 1]},
    "observations/image": {},
    "observations/free": {"not_finite": [40, 6, 2]},
    "rewards": {"not_finite": [10, 8, 0]},
    "terminations": {},
    "truncations": {},
    "actions": {},
}


def counts(path: Path) -> dict[str, dict[str, list[int]]]:
    """The attributes of all datasets of /trajectories."""
    found: dict[str, dict[str, list[int]]] = {}
    with h5py.File(path) as file:
        for name in COUNTS:
            attributes = file["trajectories"][name].attrs
            found[name] = {kind: attributes[kind].tolist() for kind in attributes}
    return found


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Any]]:
    """The file of a run on one rank, and what the run, `verify` and `inspect` say."""
    job = Job(tmp_path_factory.mktemp("said"))
    path = job.folder / "run.h5"
    starts = [Start((*RUN, "--out", path)), Start((*RUN, "--out", job.folder / "json.h5", "--json"))]
    starts += [Start((name, path, *options)) for name in ("verify", "inspect") for options in ((), ("--json",))]
    return path, job.series(starts)


def test_wrong_values_are_counted_in_the_file(said: tuple[Path, list[Any]]):
    assert counts(said[0]) == COUNTS


def test_a_run_says_the_first_of_each_leaf_once(said: tuple[Path, list[Any]]):
    result = said[1][0]
    assert (result.code, len(result.err.splitlines())) == (0, 4)
    assert (
        "mpi_rollout: env 3, step 4: its observation 'x' is 1.5 at [0], outside of its bounds -1.0 to 1.0; such values "
        "are stored as they are, and counted in the file; --env-checks bounds makes them errors of the env\n"
    ) in result.err
    assert "env 1, step 2: its observation 'n' is 7, outside of its bounds 0 to 4; " in result.err
    assert "env 2, step 6: its observation 'free' is nan, which is not finite; " in result.err
    assert "env 0, step 8: its reward is inf, which is not finite; " in result.err
    assert "\nstored as they were: " in result.out and "10 rewards not finite (first: env 0, step 8)" in result.out


def test_verify_and_inspect_say_the_same_in_words_and_in_json(said: tuple[Path, list[Any]]):
    _, (_, in_json, *results) = said
    assert [result.code for result in results] == [0] * 4
    verified, inspected = results[::2]
    words = "10 observations 'x' outside of their space (first: env 3, step 4)"
    first = verified.out.splitlines()[0]
    assert "complete and whole, but " in first and words in first
    assert words in next(line for line in inspected.out.splitlines() if line.startswith("wrong values  "))
    found = [json.loads(result.out)["wrong_values"] for result in (in_json, *results[1::2])]
    wrong = {"dataset": "observations/x", "kind": "out_of_bounds", "count": 10, "step": 4, "env_index": 3}
    assert all(wrong in each and len(each) == 4 for each in found)


def test_figures_of_returns_leave_out_what_is_not_finite(said: tuple[Path, list[Any]]):
    *_, inspected, in_json = said[1]
    found = json.loads(in_json.out, parse_constant=pytest.fail)["episodes"]
    assert found["return"] == {"min": 9, "median": 9, "mean": 9, "max": 9, "not_finite": 10}
    assert "return      min 9, median 9, mean 9, max 9; of 10 episodes not finite, and left out\n" in inspected.out


@pytest.mark.any_mpi
@pytest.mark.mpi(3)
def test_ranks_and_interruptions_do_not_change_the_counts(job: Job, said: tuple[Path, list[Any]], num_ranks: int):
    sulks = job.folder / "sulks"
    sulks.touch()
    arguments = (*RUN, "--env-kwargs", json.dumps({"sulks": str(sulks)}), "--out", "run.h5")
    stopped = job(num_ranks, *arguments)
    assert stopped.code == 70, stopped.err
    sulks.unlink()
    assert job(num_ranks, *arguments).code == 0
    assert counts(job.folder / "run.h5") == counts(said[0])


def test_what_is_recovered_has_the_counts_of_its_own_steps(tmp_path: Path):
    feed = Feed()
    writer = feed.writer(tmp_path / "run.h5", 8)
    for _ in feed.fill(writer, 21, {3, 11, 19, 21}):
        pass
    writer.drain()
    part = str(tmp_path / "run.h5.part")
    found = [
        recover(quiet, part, str(tmp_path / f"{number}.h5"), str(tmp_path / "temporary"), number) for number in (10, 21)
    ]
    whole = verify(quiet, writer.finish(ending(21)))
    assert found[1]["wrong_values"] == whole["wrong_values"] != found[0]["wrong_values"] != []


def test_counts_that_do_not_follow_from_the_values_are_refused(said: tuple[Path, list[Any]], tmp_path: Path):
    path = tmp_path / "run.h5"
    path.write_bytes(said[0].read_bytes())
    with h5py.File(path, "a") as file:
        file["trajectories/rewards"].attrs.modify("not_finite", np.array([0, -1, -1]))
    with pytest.raises(DataError, match=r"trajectories/rewards: its attribute not_finite is \[ 0 -1 -1\], from its"):
        verify(quiet, str(path))


def test_images_that_are_wrong_in_every_byte_are_counted_in_little_memory():
    low, high = np.array(0, np.uint8), np.array(1, np.uint8)
    check = ValueCheck("observations", "observation", Bounds(np.dtype(np.uint8), low, high))
    images = np.full((16, 1, 256, 256), 2, np.uint8)
    tracemalloc.start()
    try:
        [(words, *_)] = check.add(images, 5)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert words.startswith("env 0, step 5: its observation is 2 at [0, 0], outside of its bounds 0 to 1; ")
    assert check.counts == {"out_of_bounds": (16, 5, 0)} and most < 12 * images.nbytes


def steps_of(env_index: int, on_fault: OnFault) -> list[Any]:
    """The rewards of a loop over one such env, in which failures are forgiven."""
    loop = LoopVectorEnv([partial(Wrong, env_index)], infos=False, on_fault=on_fault, first_env_index=env_index)
    loop.reset()
    return [(*[float(array[0]) for array in loop.step(np.array([0]))[1:4]], list(loop.faults)) for _ in range(9)]


@pytest.mark.parametrize(
    ("env_index", "step", "what"),
    [(3, 3, "'x' is 1.5 at [0], outside of its bounds -1.0 to 1.0"), (1, 1, "'n' is 7, outside of its bounds 0 to 4")],
)
def test_with_check_bounds_the_env_has_failed(env_index: int, step: int, what: str):
    place = f"env {env_index}, step {step} of its episode: its observation {what}"
    with pytest.raises(DataError, match=f"^{re.escape(place)}$"):
        steps_of(env_index, OnFault(check_bounds=True))
    assert steps_of(env_index, OnFault(check_finite=True))[-1][:3] == (1, 1, 0)
    forgiven = steps_of(env_index, OnFault(check_bounds=True, max_restarts=3))
    assert forgiven[step] == (0, 0, 1, [(env_index, place, "restarted, 1 of 3 times")])


def test_a_reset_outside_of_the_space_is_a_failure_too():
    class High(Wrong):
        def observe(self):
            return super().observe() | {"n": 5}

    loop = LoopVectorEnv([partial(High, 0)], on_fault=OnFault(check_bounds=True))
    with pytest.raises(DataError, match=r"^env 0, reset: its observation 'n' is 5, outside of its bounds 0 to 4$"):
        loop.reset()


def test_what_attributes_say_of_wrong_values_is_read():
    attributes = {"out_of_bounds": np.array([1, 5, 2]), "not_finite": np.array([0, 7, 3])}
    assert wrong_in("rewards", attributes) == [
        {"dataset": "rewards", "kind": "out_of_bounds", "count": 1, "step": 5, "env_index": 2}
    ]
    assert wrong_in("rewards", {}) == []


@pytest.mark.parametrize("value", [[1, 5, 2], np.array([1, 5]), np.array([1.0, 5.0, 2.0]), "three"], ids=str)
def test_attributes_that_count_no_values_are_damaged(value: object):
    with pytest.raises(ContentError, match=r"attribute out_of_bounds of trajectories/rewards is .* three integers"):
        wrong_in("rewards", {"out_of_bounds": value})
