"""`render`: a stored episode once more, as a video; or one line, and no video."""

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import h5py
import numpy as np
import pytest
from jobs import Job, Result
from written_data import relist

from mpi_rollout.text import pip_install

pytest.importorskip("imageio_ffmpeg")
pytest.importorskip("PIL")
RUN = ("--num-envs", "5", "--num-steps", "70", "--seed", "2", "--progress", "none")
MAKE = ("--env-factory", "drawing_envs:make")


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of envs that draw."""
    return Job(tmp_path_factory.mktemp("drawn")).collect(2, *MAKE, *RUN)


def rendered(job: Job, path: Path, *options: str, **environment: str) -> Result:
    return job(None, "render", str(path), *options, **environment)


def frames_of(path: Path, height: int = 34, width: int = 46) -> np.ndarray:
    """The frames of a video, as ffmpeg reads them."""
    from imageio_ffmpeg import get_ffmpeg_exe

    command = [get_ffmpeg_exe(), "-loglevel", "error", "-i", str(path), "-f", "rawvideo", "-pix_fmt", "rgb24", "-"]
    raw = subprocess.run(command, capture_output=True, check=True).stdout
    return np.frombuffer(raw, np.uint8).reshape(-1, height, width, 3)


@pytest.mark.parametrize(
    ("which", "kind"), [("best", "mp4"), ("worst", "gif"), ("longest", "mp4"), ("first", "mp4"), ("3", "gif")]
)
def test_the_episode_that_is_named_is_filmed(job: Job, drawn: Path, which: str, kind: str):
    result = job(None, "render", str(drawn), *MAKE, "--episode", which, "--out", f"film.{kind}", "--json")
    assert result.code == 0, result.err
    told = json.loads(result.out)
    with h5py.File(drawn) as file:
        rows = file["episodes"][...]
    ended = rows[rows["terminated"]]
    expected = {
        "best": ended["return"].max() == told["return"],
        "worst": ended["return"].min() == told["return"],
        "longest": ended["length"].max() == told["length"],
        "first": (told["env_index"], told["start"]) == (0, 0),
        "3": told["seed"] == rows["seed"][3],
    }
    assert expected[which] and told["difference"] is None and told["fps"] == 10
    assert (told["frames"], told["width"], told["height"]) == (told["length"] + 1, 45, 33)
    frames = frames_of(job.folder / f"film.{kind}", *((33, 45) if kind == "gif" else ()))  # Only .mp4 is padded.
    assert len(frames) == told["frames"]
    assert abs(frames[:, 9, 9, 1] - 5.0 * np.arange(len(frames))).max() <= 6  # Codecs lose some of the colour.
    assert [path.name for path in job.folder.iterdir() if "film" in path.name] == [f"film.{kind}"]


def test_an_episode_under_way_is_filmed_by_its_number(job: Job, drawn: Path):
    with h5py.File(drawn) as file:
        last = len(file["episodes"]) - 1
    result = rendered(job, drawn, *MAKE, "--episode", str(last), "--fps", "25")
    assert result.code == 0 and "at 25 per s" in result.out
    assert "every observation, reward and end as it is stored" in result.out
    assert (job.folder / "episode.mp4").exists()


def test_what_is_not_the_episode_of_the_file_is_no_film_of_it(job: Job, drawn: Path):
    shutil.copy(drawn, job.folder / "run.h5")
    with h5py.File(job.folder / "run.h5", "r+") as file:
        file["trajectories/observations/draw"][2, 0, 1] += 0.25
    relist(job.folder / "run.h5")
    result = rendered(job, Path("run.h5"), *MAKE, "--episode", "first", "--out", "film.mp4")
    assert (
        result.code == 65
        and result.err.count("\n") == 1
        and "differs in its step 2: observations/draw[1]" in result.err
    )
    assert not list(job.folder.glob("film*"))
    result = rendered(job, Path("run.h5"), *MAKE, "--episode", "first", "--out", "film.mp4", "--anyway")
    assert result.code == 0 and "NOT the episode of the file: it differs in its step 2" in result.out
    assert len(frames_of(job.folder / "film.mp4"))


@pytest.mark.parametrize(
    ("factory", "code", "problem"),
    [
        ("blind", 64, "draws no frames: its render_mode is None, of ['rgb_array']; have the factory take render_mode"),
        ("refusing", 64, "cannot be made with render_mode='rgb_array': ValueError: no mode"),
        ("grey", 70, "a frame should be uint8 of shape (height, width, 3), got uint8 of shape (33, 45)"),
        ("growing", 70, "a frame of 45 x 34 follows one of 45 x 33"),
        ("screenless", 70, "the env cannot draw: OSError: there is no screen"),
        ("absent", 64, "has no attribute 'absent'"),
    ],
)
def test_an_env_that_does_not_draw_is_told(job: Job, drawn: Path, factory: str, code: int, problem: str):
    name = f"drawing_envs:{factory}"
    path = job.folder / "run.h5"
    shutil.copy(drawn, path)
    with h5py.File(path, "r+") as file:
        config = json.loads(file.attrs["config"]) | {"env_factory": name}
        file.attrs["config"] = json.dumps(config, sort_keys=True)
        from mpi_rollout.storage.schema import digest_of

        file.attrs["digest"] = digest_of(file.attrs)
    relist(path)
    result = rendered(job, path, "--env-factory", name, "--out", "film.mp4")
    assert result.code == code and len(result.messages) == 1 and problem in result.messages[0], result.err
    assert not list(job.folder.glob("film*"))


@pytest.mark.parametrize(
    ("options", "code", "problem"),
    [
        ((), 64, "render runs the code of the envs, which a file must not choose by itself"),
        (("--env", "CartPole-v1"), 64, "is of --env-factory drawing_envs:make, got --env CartPole-v1; give the same"),
        ((*MAKE, "--episode", "9999"), 64, "--episode must be one of best, worst, longest, first or a row of its"),
        ((*MAKE, "--episode", "bets"), 64, "got 'bets'"),
        ((*MAKE, "--out", "film.avi"), 64, "--out must end with .mp4 or .gif, got 'film.avi'"),
        ((*MAKE, "--out", "no/film.mp4"), 74, "there is no folder"),
        ((*MAKE, "--fps", "0"), 64, "--fps must be more than 0 and at most 240, got 0"),
    ],
)
def test_what_cannot_be_filmed_is_one_line(job: Job, drawn: Path, options: tuple[str, ...], code: int, problem: str):
    result = job(None, "render", str(drawn), *options)
    assert result.code == code and len(result.messages) == 1 and problem in result.messages[0], result.err
    assert not list(job.folder.iterdir())


@pytest.mark.parametrize(
    ("run", "code", "problem"),
    [
        (("--env", "CartPole-v1", "--no-trajectories"), 65, "has no trajectories"),
        (
            ("--env", "CartPole-v1", "--no-episode-seeds"),
            64,
            "without a seed of its own (--no-episode-seeds), and cannot",
        ),
        (
            ("--env-factory", "native_envs:drift", "--vectorization-mode", "native"),
            64,
            "is of natively vectorized envs (--vectorization-mode native), without frames",
        ),
    ],
)
def test_files_without_what_is_needed_are_refused(job: Job, run: tuple[str, ...], code: int, problem: str):
    path = job.collect(None, *run, *RUN)
    result = job(None, "render", str(path))
    assert result.code == code and len(result.messages) == 1 and problem in result.messages[0], result.err


def test_a_missing_package_is_named_and_a_gif_needs_no_ffmpeg(job: Job, drawn: Path):
    (job.folder / "imageio_ffmpeg.py").write_text("raise ImportError('it is not installed')")
    result = job(None, "render", str(drawn), *MAKE)  # Modules beside the command come first.
    way = f"{pip_install('[video]')}, or give --out NAME.gif"
    assert result.code == 64 and result.messages == [f"render needs imageio-ffmpeg for .mp4; {way}"]
    assert job(None, "render", str(drawn), *MAKE, "--out", "film.gif").code == 0


def test_a_gif_is_as_long_as_its_frames_per_second_say(tmp_path: Path):
    from PIL import Image

    from mpi_rollout.commands.render import write_video

    frames = (np.full((3, 4, 3), 9 * number, np.uint8) for number in range(25))
    write_video(frames, str(tmp_path / "film.gif"), ".gif", 30.0)
    with Image.open(tmp_path / "film.gif") as film:
        durations = [film.info["duration"] for number in range(film.n_frames) if film.seek(number) is None]
    assert {*durations} == {30, 40} and sum(durations) == 830


def test_a_video_that_cannot_be_written_leaves_nothing(job: Job, drawn: Path):
    from mpi_rollout.commands.render import write_video
    from mpi_rollout.errors import StorageError

    (job.folder / "film.mp4").mkdir()
    frames = iter([np.zeros((33, 45, 3), np.uint8)])
    with pytest.raises(StorageError, match="cannot write the video: Is a directory"):
        write_video(frames, str(job.folder / "film.mp4"), ".mp4", 10.0)
    assert [path.name for path in job.folder.iterdir()] == ["film.mp4"]


def test_a_video_that_is_interrupted_leaves_nothing(job: Job):
    from mpi_rollout.commands.render import write_video
    from mpi_rollout.errors import Interrupted

    def frames() -> Iterator[np.ndarray]:
        yield np.zeros((33, 45, 3), np.uint8)
        raise KeyboardInterrupt

    with pytest.raises(Interrupted, match="stopped before the video was whole; nothing was written"):
        write_video(frames(), str(job.folder / "film.mp4"), ".mp4", 10.0)
    assert not list(job.folder.iterdir())


def test_of_a_recorded_training_an_episode_with_a_seed_is_filmed(job: Job):
    import mpi_rollout

    path = job.folder / "training.h5"
    with mpi_rollout.connect("MountainCar-v0", 2, record=str(path)) as envs:
        for _ in range(2):
            envs.reset(seed=3)  # Cuts the episodes before.
            for _ in range(12):
                envs.step(np.ones(2, np.int64))
        envs.reset()
        for _ in range(15):
            envs.step(np.ones(2, np.int64))
    pytest.importorskip("pygame")
    result = rendered(job, path, "--episode", "longest", "--json")
    assert result.code == 0, result.err
    assert json.loads(result.out)["length"] == 12 and json.loads(result.out)["difference"] is None
    result = rendered(job, path, "--episode", "5")
    assert result.code == 64 and "on was begun without a seed of its own" in " ".join(result.err.split())
