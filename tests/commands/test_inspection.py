"""`inspect` tells what is in a file, complete or not, and refuses what is none."""

import json
import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest
from jobs import Job, Result, Start
from written_data import Feed

from mpi_rollout.commands.inspection import figures_of
from mpi_rollout.storage.schema import leaf_datasets

RUN = ("--env-factory", "envs:Nested", "--num-envs", "3", "--num-steps", "40", "--seed", "4")


@pytest.fixture(scope="module")
def complete(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a run on two ranks."""
    return Job(tmp_path_factory.mktemp("complete")).collect(2, *RUN)


@pytest.fixture(scope="module")
def part(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a run leaves whose env fails in its step 31."""
    job = Job(tmp_path_factory.mktemp("part"))
    result = job(2, "--env-factory", "envs:Failing", "--env-kwargs", '{"after": 22}', *RUN[2:], "--out", "run.h5")
    assert result.code == 70
    return job.folder / "run.h5.part"


def inspected(job: Job, path: Path, *options: str) -> Result:
    return job(None, "inspect", str(path), *options)


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory, complete: Path, part: Path) -> list[Result]:
    """What is told of both files, in words and as JSON."""
    job = Job(tmp_path_factory.mktemp("told"))
    results = job.series([Start(["inspect", path, *more]) for path in (complete, part) for more in ((), ("--json",))])
    assert all(result.code == 0 and result.err == "" for result in results)
    return results


def test_a_complete_file_is_told_in_a_table(told: list[Result], complete: Path):
    lines = told[0].out.splitlines()
    assert lines[0].startswith(f"{complete}: envs:Nested, ") and ", complete, 2" in lines[0]
    assert "run           3 envs, seed 4, policy random, sync" in lines
    assert any(line.startswith("machine       2 ranks on ") for line in lines)
    assert any(line.startswith("steps         40 of each env; ") for line in lines)


def test_every_dataset_is_told_with_its_dtype_and_shape(told: list[Result], complete: Path):
    words = [line.split(maxsplit=2) for line in told[0].out.partition("/trajectories\n")[2].splitlines()]
    with h5py.File(complete) as file:
        datasets = leaf_datasets(file["trajectories"])
        assert words == [[name, str(datasets[name].dtype), str(datasets[name].shape)] for name, *_ in words]
        assert sorted(name for name, *_ in words) == sorted(datasets)


def test_json_says_the_same_in_one_line(told: list[Result], complete: Path):
    assert told[1].out.count("\n") == 1
    found = json.loads(told[1].out)
    with h5py.File(complete) as file:
        episodes = file["episodes"][...]
        assert found["config"] == json.loads(file.attrs["config"])
        assert found["datasets"]["rewards"] == {"shape": [40, 3], "dtype": "float64"}
        assert found["throughput"]["env_steps"] == file["throughput"].attrs["env_steps"] == episodes["length"].sum()
    over = episodes[episodes["terminated"] | episodes["truncated"]]
    assert (found["complete"], found["num_ranks"], found["num_steps"]) == (True, 2, 40)
    assert found["num_transitions"] == episodes["length"].sum()
    assert found["episodes"]["ended"] == len(over)
    assert found["episodes"]["under_way"] == len(episodes) - len(over)
    assert found["episodes"]["length"]["max"] == over["length"].max()
    assert found["episodes"]["return"]["min"] == over["return"].min()


def test_a_run_that_failed_is_told_as_not_complete(told: list[Result], part: Path):
    assert "not complete; what is committed can be read" in told[2].out.splitlines()[0]
    found = json.loads(told[3].out)
    with h5py.File(part) as file:
        num_steps = int(file["trajectories"].attrs["num_steps"])
    assert (found["complete"], found["finished"], found["num_steps"]) == (False, "", num_steps)
    assert num_steps >= 22
    assert found["episodes"]["under_way"] is None and "), others may be under way; in Python" in told[2].out


def test_where_the_time_of_ranks_went_is_told(told: list[Result]):
    [line] = [line for line in told[0].out.splitlines() if line.startswith("time ")]
    assert "envs " in line and "%" in line
    ranks = json.loads(told[1].out)["ranks"]
    assert [(rank["rank"], rank["num_envs"]) for rank in ranks] == [(0, 2), (1, 1)]
    assert all(rank["host"] and rank["seconds"]["step"] > 0 for rank in ranks)


def test_a_file_is_told_before_its_first_commit_and_while_it_is_written(job: Job):
    feed = Feed()
    writer = feed.writer(job.folder / "run.h5", 8)
    before = inspected(job, job.folder / "run.h5.part")
    assert before.code == 0, before.err
    assert (
        "steps         0 of each env; 0 transitions in 0 ended episodes, and others in episodes under way" in before.out
    )
    steps = feed.fill(writer, 30, {3, 20})
    while next(steps) < 20:
        pass
    writer.drain()
    found = json.loads(inspected(job, job.folder / "run.h5.part", "--json").out)
    assert (found["complete"], found["num_steps"]) == (False, 20)
    writer.discard()


def test_a_throughput_of_the_last_start_alone_is_said_to_be_that(job: Job):
    run = ("--env", "CartPole-v1", "--num-envs", "2", "--progress", "none", "--num-steps")
    path = job.collect(None, *run, "20")
    once = inspected(job, path).out
    job.collect(None, *run, "40")
    again = inspected(job, path).out
    assert "throughput " in once and "one start" not in once
    assert "per s (of one start alone; the run had 2)" in again


def test_starts_are_counted_in_a_file_that_goes_on_in_its_copy_and_in_what_is_recovered(job: Job):
    run = ("--env", "CartPole-v1", "--num-envs", "2", "--policy", "stopping_envs:binary", "--progress", "none")
    run += ("--num-steps", "30", "--out", "run.h5")
    for stop in ("5", "9", "12"):  # The times and steps of each start are more than those of the one before.
        assert job(None, *run, STOP_AT=f"usr1:{stop}").code == 75
    shown = [inspected(job, job.folder / "run.h5.part").out]
    assert job(None, "recover", "run.h5.part", "recovered.h5").code == 0
    job.collect(None, *run)
    shown += [inspected(job, job.folder / name).out for name in ("recovered.h5", "run.h5")]
    assert [out.partition("(of one start alone; the run ")[2][:6] for out in shown] == ["had 3)", "had 3)", "had 4)"]


def test_a_file_without_trajectories_is_told(job: Job):
    path = job.collect(None, "--env", "CartPole-v1", "--num-envs", "2", "--num-steps", "9", "--no-trajectories")
    words, as_json = job.series([Start(["inspect", path, *more]) for more in ((), ("--json",))])
    assert words.code == 0, words.err
    assert words.out.splitlines()[-1] == "trajectories  none stored (--no-trajectories)"
    assert "datasets" not in json.loads(as_json.out)


def test_a_file_without_an_ended_episode_is_told(job: Job):
    pytest.importorskip("matplotlib")
    path = job.collect(None, "--env", "CartPole-v1", "--num-envs", "2", "--num-steps", "3")
    result = inspected(job, path, "--plot")
    assert result.code == 0, result.err
    assert result.out.splitlines()[-1].strip().startswith("it shows little: one ended episode of each env at most;")
    where = "in Python data.episodes and data.unfinished"
    assert f"episodes      0 ended (0 terminated, 0 truncated), 2 under way at the end; {where}\n" in result.out


def test_figures_are_drawn_beside_files_or_in_a_folder_or_where_they_are_named(job: Job, complete: Path, part: Path):
    pytest.importorskip("matplotlib")
    (job.folder / "pictures").mkdir()
    shutil.copy(complete, job.folder / "one.h5")
    shutil.copy(part, job.folder / "two.h5.part")
    assert figures_of(["a/one.h5", "two.h5.part"], None) == {"a/one.h5": "a/one.png", "two.h5.part": "two.png"}
    ways = [["one.h5", "two.h5.part", "--plot", "--out", "pictures", "--json"], ["one.h5", "--plot", "run.png"]]
    inside, named = job.series([Start(["inspect", *way]) for way in ways])
    assert (inside.code, named.code) == (0, 0), inside.err + named.err
    assert [json.loads(line)["figure"] for line in inside.out.splitlines()] == ["pictures/one.png", "pictures/two.png"]
    assert named.out.splitlines()[-1] == "figure        run.png"
    pictures = sorted(str(path.relative_to(job.folder)) for path in job.folder.rglob("*.png"))
    assert pictures == ["pictures/one.png", "pictures/two.png", "run.png"]
    assert all((job.folder / picture).read_bytes().startswith(b"\x89PNG") for picture in pictures)


def test_bars_hold_as_many_whole_numbers_as_each_other():
    from mpi_rollout.commands.run_picture import _bins

    ends = _bins(np.arange(8.0, 130), 8.0, 129.0)
    assert ends[0] == 7.5 and ends[-1] >= 129.5 and set(np.diff(ends)) == {4.0}
    assert np.array_equal(_bins(np.array([1.0, 3.0]), 1.0, 3.0), [0.5, 1.5, 2.5, 3.5])


def test_times_that_nobody_measured_have_no_axes():
    pytest.importorskip("matplotlib")
    from mpi_rollout.commands import style
    from mpi_rollout.commands.run_picture import _plot_phases
    from mpi_rollout.storage.schema import RANK

    axes = style.new_figure("--plot", 2.0).subplots()
    _plot_phases(axes, np.zeros(2, RANK))
    assert [text.get_text() for text in axes.texts] == ["not measured"] and not len(axes.get_yticks())


def test_a_figure_that_cannot_be_written_is_refused(job: Job, complete: Path):
    pytest.importorskip("matplotlib")
    (job.folder / "folder.png").mkdir()
    wrong = {"no/folder/run.png": 74, "folder.png": 64, "run.doc": 64}
    results = job.series([Start(["inspect", complete, "--plot", name]) for name in wrong])
    assert [result.code for result in results] == [*wrong.values()]
    for name, result in zip(wrong, results, strict=True):
        assert result.err.startswith(f"mpi_rollout: --plot {name}: ") and result.err.count("\n") == 1
    assert results[0].err.endswith("; mkdir -p no/folder\n")


def refusal(result: Result, path: Path) -> str:
    assert (result.code, result.out) == (65, "")
    assert result.err.startswith("mpi_rollout: ") and result.err.count("\n") == 1, result.err
    assert str(path) in result.err
    return result.err


def test_what_is_no_file_of_a_run_is_refused(job: Job, complete: Path):
    other, later, cut = (job.folder / f"{name}.h5" for name in ("other", "later", "cut"))
    cut.write_bytes(complete.read_bytes()[: complete.stat().st_size // 2])
    shutil.copy(cut, job.folder / "cut.h5.part")  # HDF5 would wait in SWMR mode for the rest to be written.
    texts = [b"", b"step,reward\n1,2\n", b"\x89HDF\r\n\x1a\n", bytes(5000)]
    for number, text in enumerate(texts):
        (job.folder / f"{number}.h5").write_bytes(text)
    with h5py.File(other, "w") as file:
        file["trajectories"] = [1, 2]
    shutil.copy(complete, later)
    with h5py.File(later, "a") as file:
        file.attrs["format_version"] = 99
    words = {
        job.folder / "none.h5": "none.h5: no such file\n",
        job.folder: job.folder.name,
        other: "other.h5 was not written by mpi_rollout\n",
        later: "has format version 99, this program reads",
    }
    no_hdf5 = [cut, job.folder / "cut.h5.part", *(job.folder / f"{number}.h5" for number in range(len(texts)))]
    words |= dict.fromkeys(no_hdf5, "is not a readable HDF5 file")
    results = job.series([Start(["inspect", path]) for path in words])
    for (path, expected), result in zip(words.items(), results, strict=True):
        assert expected in refusal(result, path)
