"""`render`: a stored episode once more, from its seed and actions, as .mp4 (imageio-ffmpeg) or .gif (Pillow).

The env is made as for `verify --replay`: its code is never the choice of the file.  Each observation, reward and end is
compared with what is stored, so that the video shows the episode of the file and no other.
"""

import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from importlib import import_module
from inspect import Parameter, signature
from itertools import chain, pairwise
from typing import Any, NamedTuple

import numpy as np

from mpi_rollout.collect.replay import Replay, driver_of
from mpi_rollout.commands.consent import Consent
from mpi_rollout.commands.replay import (
    called,
    changed_versions,
    check_failures,
    check_spaces,
    replay_of,
)
from mpi_rollout.envs.env_maker import EnvMaker, make_slice, maker_of
from mpi_rollout.envs.faults import raised_at, said_by
from mpi_rollout.envs.loop import LoopVectorEnv
from mpi_rollout.errors import DataError, EnvError, Interrupted, StorageError, UsageError
from mpi_rollout.process.paths import located
from mpi_rollout.storage.ownership import check_place, removed, temporary_path
from mpi_rollout.storage.stored_run import StoredRun
from mpi_rollout.text import counted, pip_install, system_words, words_of

MODE = "rgb_array"
NAMES = ("best", "worst", "longest", "first")
FPS = 30.0  # The frames per second where the env does not say.
HEADLESS = "for MuJoCo without a display set MUJOCO_GL to egl or osmesa"
PACKAGES = {".mp4": ("imageio_ffmpeg", "imageio-ffmpeg"), ".gif": ("PIL", "Pillow")}
MP4 = "-c:v", "libx264", "-pix_fmt", "yuv420p", "-crf", "20", "-movflags", "+faststart", "-f", "mp4"
MOST_FPS = {".mp4": 240.0, ".gif": 50.0}  # A GIF counts in hundredths of seconds, and viewers slow down shorter ones.


@dataclass(frozen=True)
class Shot:
    """What is to be filmed."""

    episode: str  # One of `NAMES`, or a row of /episodes.
    out: str
    fps: float | None = None  # None is what the env says.
    anyway: bool = False  # Film the episode also if it does not come out as it is stored.


def render(path: str, shot: Shot, consent: Consent, as_json: bool = False) -> list[str]:
    """Film an episode of a file; return the lines to print about it.

    UsageError if it cannot be filmed, or its env may not be made.  DataError if it does not come out as it is stored.
    StorageError if the video cannot be written.
    """
    if shot.fps is not None and not 0 < shot.fps <= MOST_FPS[".mp4"]:
        raise UsageError(f"--fps must be more than 0 and at most {MOST_FPS['.mp4']:g}, got {shot.fps:g}")
    kind = kind_of(shot.out)
    with closing(StoredRun(path)) as stored:
        stored.check_has_steps()
        row = chosen(stored, shot.episode)
        check_can_begin(stored, row)
        consent.check(stored.config, path)
        if not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):  # MuJoCo and pygame need one.
            os.environ.setdefault("MUJOCO_GL", "egl"), os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
        maker = maker_of(stored.config)
        with closing(_made(maker, int(row["env_index"]))) as envs:
            check_spaces(stored, envs)
            replay = replay_of(stored, driver_of(maker, envs), row)
            fps = shot.fps or float(envs.metadata.get("render_fps") or FPS)
            film = write_video(_frames(envs, replay, stored, row, shot.anyway), shot.out, kind, fps)
    difference = replay.differences.get(0)
    told = {"file": shot.out} | {name: row[name].item() for name in ("env_index", "start", "length", "return", "seed")}
    told["return"] = told["return"] if np.isfinite(told["return"]) else None
    told |= {"frames": film.num_frames, "width": film.width, "height": film.height, "fps": film.fps}
    told |= {"difference": None if difference is None else str(difference)}
    return [json.dumps(told)] if as_json else _lines(told)


def chosen(stored: StoredRun, which: str) -> np.void:
    """Return the row of the episode that is meant: of those that ended, if any has; one that failed by number only."""
    rows = np.concatenate([stored.ended, stored.unfinished()])
    if which not in NAMES:
        if not (which.isascii() and which.isdigit() and int(which) < len(rows)):
            numbers = f" or a row of its {counted(len(rows), 'episode')}, from 0 on" if len(rows) else ""
            raise UsageError(f"--episode must be one of {', '.join(NAMES)}{numbers}, got {which!r:.40}")
        return rows[int(which)]
    whole = rows[(rows["length"] > 0) & ~rows["faulted"]]
    if (whole["seed"] >= 0).any():  # A trainer that is recorded begins some without.
        whole = whole[whole["seed"] >= 0]
    ended = whole[whole["terminated"] | whole["truncated"]]
    candidates = ended if len(ended) else whole
    if which in ("best", "worst"):
        candidates = candidates[np.isfinite(candidates["return"])]
    if not len(candidates):
        raise UsageError(f"--episode {which}: {stored.path} has no such episode")
    order = {
        "best": -candidates["return"],
        "worst": candidates["return"],
        "longest": -candidates["length"],
        "first": candidates["start"],
    }[which]
    return candidates[np.lexsort((candidates["env_index"], candidates["start"], order))[0]]


def check_can_begin(stored: StoredRun, row: np.void) -> None:
    """Raise UsageError if an episode cannot be taken again by itself in one env."""
    mode, resets = stored.config.vectorization_mode, stored.resets
    if mode != "sync":
        envs = f"natively vectorized envs (--vectorization-mode {mode})"
        raise UsageError(f"render: {stored.path} is of {envs}, without frames")
    if row["length"] == 0:
        raise UsageError(f"render: {called(row)} has no step: its env failed as it began")
    if row["seed"] < 0:
        once = " (--no-episode-seeds)" * (not stored.config.episode_seeds)
        raise UsageError(f"render: {called(row)} was begun without a seed of its own{once}, and cannot be taken again")
    if resets is not None:
        here = resets[(resets["env_index"] == row["env_index"]) & (resets["step"] == row["start"])]
        if here["options"].any():
            raise UsageError(f"render: {called(row)} was begun with options, which a file does not have")


def _made(maker: EnvMaker, env_index: int) -> LoopVectorEnv:
    """Make an env that draws frames."""
    try:
        envs = make_slice(_drawing(maker), range(env_index, env_index + 1), seed=0)
    except EnvError as error:
        cause = error.__cause__ or error
        what = f"{maker.name} cannot be made with render_mode={MODE!r}: {said_by(cause)}{raised_at(cause)}"
        raise UsageError(f"render: {what}") from cause
    assert isinstance(envs, LoopVectorEnv), "others are refused"
    mode = envs.envs[0].render_mode
    if mode != MODE:
        modes = envs.metadata.get("render_modes") or "none"
        way_out = "" if isinstance(maker.env, str) else f"; have the factory take render_mode, or give the env {MODE!r}"
        raise UsageError(f"render: {maker.name} draws no frames: its render_mode is {mode}, of {modes}{way_out}")
    return envs


def _drawing(maker: EnvMaker) -> EnvMaker:
    """Return a maker of the same envs with `render_mode`, where a factory takes it."""
    if not isinstance(maker.env, str) and not _takes_mode(maker.env):
        return maker
    if isinstance(maker.kwargs, tuple):
        return replace(maker, kwargs=tuple({**kwargs, "render_mode": MODE} for kwargs in maker.kwargs))
    return replace(maker, kwargs={**maker.kwargs, "render_mode": MODE})


def _takes_mode(factory: Any) -> bool:
    try:
        parameters = signature(factory).parameters
    except (TypeError, ValueError):
        return False
    return "render_mode" in parameters or any(each.kind is Parameter.VAR_KEYWORD for each in parameters.values())


def _frames(envs: LoopVectorEnv, replay: Replay, stored: StoredRun, row: np.void, anyway: bool) -> Iterator[np.ndarray]:
    """Yield the frames of an episode; DataError at the first difference from what is stored, unless `anyway`."""
    replay.begin()
    check_failures(envs)
    yield _frame(envs)
    while not replay.is_over and (anyway or not replay.differences):
        replay.advance()
        check_failures(envs)
        yield _frame(envs)
    if replay.differences and not anyway:
        raise DataError(
            f"{stored.path}: {called(row)} differs in its step {replay.differences[0]}{changed_versions(stored)}; "
            "--anyway films what the env does here"
        )


def _frame(envs: LoopVectorEnv) -> np.ndarray:
    try:
        [frame] = envs.render()
    except Exception as error:
        way_out = "" if os.environ.get("DISPLAY") else f"; {HEADLESS}"
        raise EnvError(f"render: the env cannot draw: {words_of(error)}{way_out}") from error
    if not isinstance(frame, np.ndarray) or frame.dtype != np.uint8 or frame.ndim != 3 or frame.shape[2] != 3:
        got = f"{frame.dtype} of shape {frame.shape}" if isinstance(frame, np.ndarray) else type(frame).__name__
        raise EnvError(f"render: a frame should be uint8 of shape (height, width, 3), got {got}")
    return frame


def _lines(told: Mapping[str, Any]) -> list[str]:
    seconds = told["frames"] / told["fps"]
    same = "every observation, reward and end as it is stored"
    if told["difference"] is not None:
        same = f"NOT the episode of the file: it differs in its step {told['difference']}"
    outcome = f"{counted(told['length'], 'step')}, "
    outcome += "return not finite" if told["return"] is None else f"return {told['return']:,.6g}"
    return [
        f"{told['file']}: {told['frames']:,} frames of {told['width']} x {told['height']}, {seconds:,.1f} s at "
        f"{told['fps']:g} per s",
        f"episode       env {told['env_index']}, from step {told['start']:,} on, {outcome}, seed {told['seed']}",
        f"replay        {same}",
    ]


class Film(NamedTuple):
    """What was written."""

    num_frames: int
    width: int
    height: int
    fps: float


def kind_of(path: str) -> str:
    """Return the suffix of a video's name.

    UsageError if it can be no video, or the package for it is missing; StorageError if no file can be written there.
    """
    kind = os.path.splitext(path)[1].lower()
    if kind not in PACKAGES:
        raise UsageError(f"--out must end with {' or '.join(PACKAGES)}, got {path!r}")
    check_place("out", path)
    module, package = PACKAGES[kind]
    try:
        import_module(module)
    except ImportError as error:
        other = ", or give --out NAME.gif" * (kind == ".mp4")
        raise UsageError(f"render needs {package} for {kind}; {pip_install('[video]')}{other}") from error
    return kind


def write_video(frames: Iterator[np.ndarray], path: str, kind: str, fps: float) -> Film:
    """Write frames (height, width, 3) of uint8; the file gets its name when it is whole.

    `imageio_ffmpeg.write_frames` would not tell that ffmpeg has failed.  EnvError if a frame has another size than the
    first one, StorageError if the video cannot be written, Interrupted if somebody asked to stop.
    """
    place = located(path)  # An env may have changed the current folder.
    temporary, fps = temporary_path(place, "rendering"), min(fps, MOST_FPS[kind])
    try:
        with removed(temporary):
            first = next(frames)
            num_frames = (_write_mp4 if kind == ".mp4" else _write_gif)(_alike(first, frames), temporary, fps)
            os.replace(temporary, place)
            return Film(num_frames, first.shape[1], first.shape[0], fps)
    except KeyboardInterrupt:
        raise Interrupted(f"--out {path}: stopped before the video was whole; nothing was written") from None
    except OSError as error:
        raise StorageError(f"--out {path}: cannot write the video: {system_words(error)}") from error


def _alike(first: np.ndarray, frames: Iterator[np.ndarray]) -> Iterator[np.ndarray]:
    """Yield frames; EnvError if one has another size than the first."""
    for frame in chain([first], frames):
        if frame.shape != first.shape:
            (height, width, _), (rows, columns, _) = first.shape, frame.shape
            raise EnvError(f"render: a frame of {columns} x {rows} follows one of {width} x {height}")
        yield frame


def _write_gif(frames: Iterator[np.ndarray], path: str, fps: float) -> int:
    from PIL import Image

    images = [Image.fromarray(frame).convert("P", palette=Image.Palette.ADAPTIVE) for frame in frames]
    ends = [round(100 * number / fps) for number in range(len(images) + 1)]  # A GIF counts in hundredths of seconds.
    durations = [10 * (after - before) for before, after in pairwise(ends)]
    images[0].save(path, "GIF", save_all=True, append_images=images[1:], duration=durations, loop=0)
    return len(images)


def _write_mp4(frames: Iterator[np.ndarray], path: str, fps: float) -> int:
    from imageio_ffmpeg import get_ffmpeg_exe

    first, num_frames = next(frames), 0
    height, width = first.shape[:2]
    padding = (0, height % 2), (0, width % 2), (0, 0)  # The codec halves the sides of colours.
    size = f"{width + width % 2}x{height + height % 2}"
    source = ("-f", "rawvideo", "-pix_fmt", "rgb24", "-s", size, "-r", f"{fps:g}", "-i", "-")
    command = [get_ffmpeg_exe(), "-y", "-loglevel", "error", *source, *MP4, path]
    ffmpeg = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    assert ffmpeg.stdin is not None
    try:
        for frame in chain([first], frames):
            try:
                ffmpeg.stdin.write(np.pad(frame, padding, "edge").tobytes())
            except BrokenPipeError:  # It says below why it has ended.
                break
            num_frames += 1
        _, words = ffmpeg.communicate()
    except BaseException:  # Nobody wants the video.
        ffmpeg.kill()
        ffmpeg.communicate()
        raise
    if ffmpeg.returncode:
        lines = [line.strip() for line in words.decode(errors="replace").splitlines() if line.strip()]
        raise OSError(lines[-1] if lines else "ffmpeg does not say why")
    return num_frames
