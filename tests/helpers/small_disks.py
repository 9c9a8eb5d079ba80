"""A real file system that is soon full."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disk(folder: Path, megabytes: int) -> Iterator[Path]:
    """Mount one of so many megabytes on a new folder; skip the test where that cannot be done."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(folder)]
    if os.getuid() != 0 or subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("only root can mount a small file system")
    try:
        yield folder
    finally:  # A process that was killed may not have let go yet.
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
