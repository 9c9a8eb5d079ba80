"""Temporary files beside an output."""

import os
import subprocess
from pathlib import Path

from mpi_rollout.storage.ownership import temporary_path

HOST = os.uname().nodename


def test_files_of_dead_processes_of_this_host_are_removed_and_no_others(tmp_path: Path):
    dead = subprocess.Popen(["true"])
    dead.wait()
    out = tmp_path / "run[1].h5"
    gone = [Path(f"{out}.probe-{HOST}-{dead.pid}")]
    kept = [
        Path(f"{out}.{end}") for end in (f"probe-{HOST}-{os.getpid()}", f"probe-other-{dead.pid}", "probe-mine", "part")
    ]
    for path in gone + kept:
        path.touch()
    assert temporary_path(str(out), "probe") == f"{out}.probe-{HOST}-{os.getpid()}"
    assert sorted(tmp_path.iterdir()) == sorted(kept)
