"""`--trace`: events that a viewer can draw, in the order of time on all ranks; bounded; no run fails for it."""

import gzip
import json
import os
from pathlib import Path

import pytest
from jobs import Job, assert_same_bytes, datasets

from mpi_rollout.collect.trace import TracingClock, events_of
from mpi_rollout.process.clock import WORDS

pytestmark = pytest.mark.any_mpi
RUN = ("--env", "CartPole-v1", "--num-envs", "6", "--num-steps", "60")
LOCKSTEP = (*RUN, "--policy", "policies:leaning", "--fragment-length", "1")


def laps_of(path: Path) -> dict[int, list[dict]]:
    """The events of each rank, which are what the format wants: they come one after the other."""
    text = path.read_bytes()
    events = json.loads(gzip.decompress(text) if path.suffix == ".gz" else text)
    laps: dict[int, list[dict]] = {}
    for event in events:
        assert event["ph"] in "XM" and isinstance(event["pid"], int) and event["tid"] == 0
        if event["ph"] == "X":
            assert event["name"] in {*WORDS.values(), "other"} and event["dur"] >= 0 and event["args"]["step"] >= -1
            laps.setdefault(event["pid"], []).append(event)
    names = {event["pid"]: event["args"]["name"] for event in events if event["ph"] == "M"}
    assert names.keys() == laps.keys() and all(name.startswith(f"rank {rank} (") for rank, name in names.items())
    assert not laps or min(of_rank[0]["ts"] for of_rank in laps.values()) == 0
    for rank in laps:
        for one, after in zip(laps[rank], laps[rank][1:], strict=False):
            assert after["ts"] > one["ts"] + one["dur"] or one["dur"] == 0
    return laps


@pytest.mark.mpi(1, 2, 3)
def test_each_step_of_each_rank_is_in_the_trace_and_after_its_order(job: Job, num_ranks: int):
    ways = {
        "plain": (),
        "all.json": ("--trace", "all.json"),
        "some.json.gz": ("--trace", "some.json.gz", "--trace-part", "0-0:20-29"),
        "gone": ("--trace", "gone/trace.json"),
        "root.json": ("--trace", "root.json", *(("--root-envs", "0") if num_ranks > 1 else ())),
        "ready.json": ("--trace", "ready.json", "--batch-size", "1"),
    }
    (job.folder / "gone").mkdir()
    commands = [(*LOCKSTEP, *way, "--out", f"run{place}.h5") for place, way in enumerate(ways.values())]
    assert job.train(num_ranks, "runs", commands) == [0] * len(ways)
    whole = laps_of(job.folder / "all.json")
    assert whole.keys() == set(range(num_ranks))
    for laps in whole.values():
        assert [lap["args"]["step"] for lap in laps if lap["name"] == "envs"] == list(range(60))
    sent = {lap["args"]["step"]: lap["ts"] for lap in whole[0] if lap["name"] == "send"}
    gathered = {lap["args"]["step"]: lap["ts"] + lap["dur"] for lap in whole[0] if lap["name"] == "gather"}
    assert sent.keys() == set(range(60))
    for lap in (lap for laps in whole.values() for lap in laps if lap["name"] == "envs"):
        assert sent[lap["args"]["step"]] <= lap["ts"] + lap["dur"] <= gathered[lap["args"]["step"]] + 0.01
    assert {lap["name"] for lap in whole[0]} >= {"policy", "send", "envs", "gather"}
    part = laps_of(job.folder / "some.json.gz")
    assert part.keys() == {0} and {lap["args"]["step"] for lap in part[0]} == set(range(20, 30))
    assert {lap["args"]["step"] for lap in laps_of(job.folder / "root.json")[0]} >= set(range(60))
    assert laps_of(job.folder / "ready.json").keys() == set(range(num_ranks))
    for place in range(1, 5):
        assert_same_bytes(datasets(job.folder / "run0.h5"), datasets(job.folder / f"run{place}.h5"))


@pytest.mark.mpi(2)
def test_a_run_that_is_stopped_has_its_trace_and_one_that_continues_counts_its_own_steps(job: Job):
    failing = ("--env-factory", "failing_envs:failing", "--num-envs", "6", "--num-steps", "20", "--progress", "none")
    how = ("--env-kwargs", json.dumps({"how": "raise", "rank": 1, "after": 5}), "--fragment-length", "1")
    result = job(2, *failing, *how, "--trace", "failed.json", "--out", "failed.h5")
    assert result.code == 70 and laps_of(job.folder / "failed.json").keys() == {0, 1}
    longer = (*RUN, "--fragment-length", "1", "--trace", "more.json", "--out", "run.h5", "--num-steps")
    assert job.train(2, "runs", [[*longer, "30"], [*longer, "50"]]) == [0, 0]
    steps = {lap["args"]["step"] for lap in laps_of(job.folder / "more.json")[1] if lap["name"] == "envs"}
    assert len(steps) == 20


def test_a_trace_that_cannot_be_written_is_refused_at_the_start_or_one_line_at_the_end(job: Job):
    result = job(None, *RUN, "--trace", "no/trace.json")
    assert result.code == 74 and len(result.messages) == 1 and "there is no folder" in result.messages[0]
    for part in ("", "0-7", "all:0-9", "1:2", "7-0:0-9", "0-7:9-0"):
        result = job(None, *RUN, "--trace", "t.json", "--trace-part", part)
        assert result.code == 64 and "--trace-part must be like 0-7:0-999" in result.messages[0]
    result = job(None, *RUN, "--trace-part", "0-1:0-5")
    assert result.code == 64 and "is for --trace" in result.messages[0]
    run = ("--env-factory", "vanishing_folder:make", "--num-envs", "4", "--num-steps", "20", "--progress", "none")
    (job.folder / "gone").mkdir()
    result = job(None, *run, "--trace", "gone/trace.json", "--out", "run.h5")
    assert result.code == 0 and "mpi_rollout: --trace gone/trace.json: cannot write it: No such file" in result.err


def test_a_trace_replaces_nothing_but_a_trace(job: Job):
    run = (*RUN, "--out", "run.h5", "--trace")
    for name in ("run.h5", "run.h5.part", "run.status.json", "./run.h5"):
        result = job(None, *run, name)
        assert (result.code, result.messages) == (
            64, [f"--trace {name}: the run itself writes this file; give the trace another name"]
        )  # fmt: skip
    (job.folder / "mine.py").write_text("import gymnasium")
    (job.folder / "mine.json.gz").write_text("[]")
    os.mkfifo(job.folder / "pipe")
    (job.folder / "folder").mkdir()
    (job.folder / "link").symlink_to("mine.py")
    for name in ("mine.py", "mine.json.gz", "pipe", "folder", "folder/", "link"):
        result = job(None, *run, name)
        assert result.code == 64 and f"--trace {name} exists and is no trace; move it away" in result.messages[0]
    (job.folder / "new.json").touch()
    longer = [(*run, "new.json", "--num-steps", number) for number in ("20", "30")]
    assert job.train(1, "runs", longer) == [0, 0] and laps_of(job.folder / "new.json").keys() == {0}


def test_a_rank_keeps_no_more_than_it_may(monkeypatch):
    monkeypatch.setattr("mpi_rollout.collect.trace.MOST_EVENTS", 5)
    clock = TracingClock(range(9), lambda: 1)
    clock.begin()
    for _ in range(9):
        clock.lap("send")
    assert len(clock.laps) == 5 and clock.seconds["send"] > 0


def test_times_are_microseconds_of_one_clock_and_events_do_not_touch():
    laps = [("send", 5.0, 5.25, 0), ("envs", 5.25, 6.0, 0)], [("envs", 1.5, 2.0, 0)]
    events = events_of([("one", laps[0]), ("other", laps[1])], [0.0, 4.0])  # The clock of the other host lags behind.
    times = [(event["pid"], event["ts"], event["dur"]) for event in events if event["ph"] == "X"]
    assert times == [(0, 0.0, 249999.999), (0, 250000.0, 749999.999), (1, 500000.0, 499999.999)]
