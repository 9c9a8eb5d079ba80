"""The page about how data flows names the files that the data pass; a step passes no more of them than it did."""

import json
import re
import sys
import threading
from dataclasses import astuple, dataclass
from itertools import groupby
from pathlib import Path

import numpy as np
import pytest
from envs import Counting
from jobs import Job
from single_rank import drive, root_of
from walked_step import LAST, NUM_ENVS

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs/explanation/walk.md").read_text()
NUM_CALLS = 20  # Of the policy, before the step that is followed.


def stops(numbers: range) -> list[str]:
    """The files of some stops, in their order."""
    rows = re.findall(r"^\| (\d+) \| `(\w+/)` \| (.*?) \|", PAGE, re.MULTILINE)
    return [
        folder + name
        for number, folder, files in rows
        if int(number) in numbers
        for name in re.findall(r"`([\w.]+)`", files)
    ]


def followed(out: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[list[str], list[str], set[str]]:
    """The files that a step visits, in this order: from the policy to `env.step`, and on to the next policy's call.

    Also those that the writer's thread visits.
    """
    visits: list[str] = []
    of_writer: set[str] = set()
    marks: list[int] = []
    calls = 0
    step = Counting.step

    def note(frame: object, event: str, _argument: object) -> None:
        name = frame.f_code.co_filename
        if event in ("call", "c_return") and name.startswith(f"{ROOT}/mpi_rollout/"):
            visits.append(name.removeprefix(f"{ROOT}/mpi_rollout/"))

    def note_of_writer(frame: object, *_: object) -> None:
        of_writer.add(frame.f_code.co_filename.removeprefix(f"{ROOT}/mpi_rollout/"))

    def policy(observations: np.ndarray) -> np.ndarray:
        nonlocal calls
        calls += 1
        if calls == NUM_CALLS:
            visits.clear()
            sys.setprofile(note)
        elif calls == NUM_CALLS + 1:
            sys.setprofile(None)
            marks.append(len(visits))
        return np.full(len(observations), 3)

    def noted_step(env: Counting, action: int) -> tuple:
        if calls == NUM_CALLS:
            marks.append(len(visits))
        return step(env, action)

    monkeypatch.setattr(Counting, "step", noted_step)
    threading.setprofile(note_of_writer)
    try:
        assert drive(root_of(out, policy, num_steps=NUM_CALLS + 2)) == 0
    finally:
        threading.setprofile(None)
    return visits[: marks[0]], visits[marks[-2] : marks[-1]], of_writer


def test_the_page_names_what_the_data_pass_in_their_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    out, back, of_writer = followed(tmp_path / "run.h5", monkeypatch)
    actions, observations = stops(range(1, 11)), stops(range(11, 16))
    # The user's policy stands in the place of stop 2.
    assert [name for name in dict.fromkeys(out) if name in actions] == [actions[0], *actions[2:]]
    assert [name for name in dict.fromkeys(back) if name in observations] == observations
    assert set(stops(range(16, 17))) <= of_writer
    assert len(actions) <= 10 and len(observations) + len(stops(range(16, 17))) <= 10
    named = set(re.findall(r"`([\w.]+/)?(\w+\.py)`", PAGE))
    unnamed = {Path(name).name for name in {*out, *back}} - {name for _, name in named}
    assert not unnamed, "the page does not name these"


# Whatever a page names: how much a reader of one step has to hold in his head.  These only fall.


@dataclass(frozen=True)
class Walk:
    """What a step visits: files, calls of their functions, and returns to a file that it has left."""

    num_files: int
    num_calls: int
    num_returns: int


# Ranks that may also sleep while they wait visit two more files each, and a varying number of functions.
CEILINGS = {"root": Walk(16, 80, 35), "worker": Walk(10, 35, 14)}


def walk_of(visits: list[str]) -> tuple[Walk, str]:
    """Count what was visited; also say it, in its order."""
    files = list(dict.fromkeys(visits))
    changes = [name for name, _ in groupby(visits)]
    walk = Walk(len(files), len(visits), len(changes) - len(files))
    return walk, " > ".join(f"{name} ({visits.count(name)})" for name in files)


@pytest.mark.any_mpi
@pytest.mark.mpi(2)
def test_a_step_in_lockstep_visits_no_more_than_it_did(job: Job, num_ranks: int):
    sizes = ("--num-envs", str(NUM_ENVS), "--num-steps", str(LAST + 10), "--wait", "spin")
    envs = ("--env-factory", "walked_step:make_env", "--policy", "walked_step:act")
    result = job(num_ranks, *envs, *sizes)
    assert result.code == 0, result.err
    for side, ceiling in CEILINGS.items():
        walk, told = walk_of(json.loads((job.folder / f"{side}.json").read_text()))
        is_no_more = [own <= most for own, most in zip(astuple(walk), astuple(ceiling), strict=True)]
        assert all(is_no_more), f"a step of the {side}: {walk}, it was {ceiling}; calls in each file: {told}"
