"""Frames into a video file, by the ffmpeg that imageio-ffmpeg brings (extra `video`): a whole file, or none."""

import os
import subprocess
from collections.abc import Iterator
from itertools import chain
from typing import NamedTuple

import numpy as np

from mpi_rollout.errors import EnvError, Interrupted, StorageError, UsageError
from mpi_rollout.process.paths import located
from mpi_rollout.storage.ownership import check_place, removed, temporary_path
from mpi_rollout.text import pip_install, system_words

GIF_FILTER = "split[a][b];[a]palettegen[p];[b][p]paletteuse"  # Colours of the video itself, not a fixed set.
OUTPUT = {
    ".mp4": ("-c:v", "libx264", "-pix_fmt", "yuv420p", "-crf", "20", "-movflags", "+faststart", "-f", "mp4"),
    ".gif": ("-vf", GIF_FILTER, "-f", "gif"),
}
MOST_FPS = {".mp4": 240.0, ".gif": 50.0}  # A GIF counts in hundredths of seconds, and viewers slow down shorter ones.


class Film(NamedTuple):
    """What was written."""

    num_frames: int
    width: int
    height: int
    fps: float


def kind_of(path: str) -> str:
    """Return the suffix of a video's name.

    UsageError if it can be no video, or the package that writes them is missing; StorageError if no file can be written
    there.
    """
    kind = os.path.splitext(path)[1].lower()
    if kind not in OUTPUT:
        raise UsageError(f"--out must end with {' or '.join(OUTPUT)}, got {path!r}")
    check_place("out", path)
    try:
        import imageio_ffmpeg  # noqa: F401
    except ImportError as error:
        raise UsageError(f"render needs imageio-ffmpeg; {pip_install('[video]')}") from error
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
            film = _write(frames, temporary, kind, fps)
            os.replace(temporary, place)
            return film
    except KeyboardInterrupt:
        raise Interrupted(f"--out {path}: stopped before the video was whole; nothing was written") from None
    except OSError as error:
        raise StorageError(f"--out {path}: cannot write the video: {system_words(error)}") from error


def _write(frames: Iterator[np.ndarray], path: str, kind: str, fps: float) -> Film:
    from imageio_ffmpeg import get_ffmpeg_exe

    first, num_frames = next(frames), 0
    height, width = first.shape[:2]
    padding = (0, height % 2), (0, width % 2), (0, 0)  # The codec halves the sides of colours.
    size = f"{width + width % 2}x{height + height % 2}"
    source = ("-f", "rawvideo", "-pix_fmt", "rgb24", "-s", size, "-r", f"{fps:g}", "-i", "-")
    command = [get_ffmpeg_exe(), "-y", "-loglevel", "error", *source, *OUTPUT[kind], path]
    ffmpeg = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    assert ffmpeg.stdin is not None
    try:
        for frame in chain([first], frames):
            if frame.shape != first.shape:
                raise EnvError(
                    f"render: a frame of {frame.shape[1]} x {frame.shape[0]} follows one of {width} x {height}"
                )
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
    return Film(num_frames, width, height, fps)
