"""Frames into a video file, by the ffmpeg that imageio-ffmpeg brings (extra `video`): a whole file, or none."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import numpy as np

from mpi_rollout.errors import EnvError, Interrupted, StorageError, UsageError
from mpi_rollout.process.paths import located
from mpi_rollout.storage.ownership import check_place, temporary_path
from mpi_rollout.text import system_words

GIF_FILTER = "split[a][b];[a]palettegen[p];[b][p]paletteuse"  # Colours of the video itself, not a fixed set.
OUTPUT = {
    ".mp4": ("-c:v", "libx264", "-pix_fmt", "yuv420p", "-crf", "20", "-movflags", "+faststart", "-f", "mp4"),
    ".gif": ("-vf", GIF_FILTER, "-f", "gif"),
}
MOST_FPS = {".mp4": 240.0, ".gif": 50.0}  # A GIF counts in hundredths of seconds, and viewers slow down shorter ones.


class Video:
    """A video that ffmpeg is writing; the first frame says its size."""

    def __init__(self, path: str, kind: str, fps: float):
        self._path, self._kind, self.fps = path, kind, fps
        self._ffmpeg: subprocess.Popen[bytes] | None = None
        self.num_frames, self.size = 0, (0, 0)

    def write(self, frame: np.ndarray) -> None:
        """Append a frame, an array (height, width, 3) of uint8."""
        height, width = frame.shape[:2]
        if self._ffmpeg is None:
            self.size = width, height
            self._ffmpeg = self._begin(width + width % 2, height + height % 2)
        if self.size != (width, height):
            raise EnvError(f"render: a frame of {width} x {height} follows one of {self.size[0]} x {self.size[1]}")
        even = np.pad(
            frame, ((0, height % 2), (0, width % 2), (0, 0)), "edge"
        )  # The codec halves the sides of colours.
        assert self._ffmpeg.stdin is not None
        try:
            self._ffmpeg.stdin.write(even.tobytes())
        except BrokenPipeError:
            self.close()  # It says why it has ended.
            raise
        self.num_frames += 1

    def _begin(self, width: int, height: int) -> "subprocess.Popen[bytes]":
        from imageio_ffmpeg import get_ffmpeg_exe

        frames = ("-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{width}x{height}", "-r", f"{self.fps:g}", "-i", "-")
        command = [get_ffmpeg_exe(), "-y", "-loglevel", "error", *frames, *OUTPUT[self._kind], self._path]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)

    def close(self) -> None:
        """Let ffmpeg write the rest and end; OSError with its words if it could not."""
        if self._ffmpeg is None:
            return
        ffmpeg, self._ffmpeg = self._ffmpeg, None
        _, words = ffmpeg.communicate()
        if ffmpeg.returncode:
            raise OSError(last_line(words.decode(errors="replace")))

    def stop(self) -> None:
        """End ffmpeg at once: nobody wants the video."""
        if self._ffmpeg is not None:
            self._ffmpeg.kill()
            self._ffmpeg.communicate()
            self._ffmpeg = None


def kind_of(path: str) -> str:
    """Return the suffix of a video's name.

    Raises
    ------
    UsageError
        It can be no video, or the package that writes them is missing.
    StorageError
        No file can be written there.
    """
    kind = os.path.splitext(path)[1].lower()
    if kind not in OUTPUT:
        raise UsageError(f"--out must end with {' or '.join(OUTPUT)}, got {path!r}")
    check_place("out", path)
    try:
        import imageio_ffmpeg  # noqa: F401
    except ImportError as error:
        raise UsageError("render needs imageio-ffmpeg; pip install 'mpi_rollout[video]'") from error
    return kind


def last_line(text: str) -> str:
    """Return the last line that says something: ffmpeg's words for what went wrong."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "ffmpeg does not say why")


@contextmanager
def written(path: str, kind: str, fps: float) -> Iterator[Video]:
    """Write a video that gets its name when it is whole.

    Raises
    ------
    StorageError
        It cannot be written.
    Interrupted
        Somebody asked to stop.
    """
    place = located(path)  # An env may have changed the current folder.
    temporary = temporary_path(place, "rendering")
    video = Video(temporary, kind, min(fps, MOST_FPS[kind]))
    try:
        yield video
        video.close()
        os.replace(temporary, place)
    except KeyboardInterrupt:
        raise Interrupted(f"--out {path}: stopped before the video was whole; nothing was written") from None
    except OSError as error:
        raise StorageError(f"--out {path}: cannot write the video: {system_words(error)}") from error
    finally:
        video.stop()
        with suppress(OSError):
            os.unlink(temporary)
