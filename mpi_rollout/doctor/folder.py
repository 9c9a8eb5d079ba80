"""What the output's file system will do to a run: room, speed, locks, reading while it is written."""

import fcntl
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from time import perf_counter

import numpy as np

from mpi_rollout.doctor.findings import BAD, FILES, OK, WARN, Finding
from mpi_rollout.storage.lock import acquire

PROBE_NBYTES, PIECE_NBYTES, WRITE_S = 64 * 2**20, 4 * 2**20, 1.5
SLOW_MB_PER_S, SLOW_FSYNC_MS = 20.0, 100.0
LEAST_FREE_BYTES, LEAST_FREE_INODES = 2**30, 1000
NETWORK = ("nfs", "cifs", "smb", "9p", "sshfs", "afs")
MEMORY = ("tmpfs", "ramfs")
PARALLEL = ("lustre", "gpfs", "beegfs", "ceph", "wekafs")
READER = """
import sys, h5py
with h5py.File(sys.argv[1], libver="latest", swmr=True, locking=False) as file:
    print(int(file["data"][:].sum()))
"""


def default_folder() -> str:
    """Where `run` writes to, if it is there."""
    return "results" if os.path.isdir("results") else "."


@dataclass(frozen=True)
class Mount:
    """Where a folder's file system hangs, and its type."""

    point: str
    kind: str


def mount_of(folder: str, mounts: str) -> Mount:
    """The mount of a folder, from the text of /proc/self/mounts; the last of those that hide each other."""
    path, found = os.path.realpath(folder), Mount("/", "unknown")
    for line in mounts.splitlines():
        _, point, kind, *_ = line.split()
        point = point.encode().decode("unicode_escape")  # Spaces are \040.
        inside = path == point or path.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(found.point):
            found = Mount(point, kind)
    return found


def judge_folder(folder: str) -> Iterator[Finding]:
    """All that is known of a folder; if it cannot be written to, nothing but that."""
    refusal = judge_access(folder)
    if refusal is not None:
        yield refusal
        return
    yield judge_kind(mount_of(folder, Path("/proc/self/mounts").read_text()), folder)
    yield judge_room(folder, os.statvfs(folder))
    if free_bytes(os.statvfs(folder)) > 4 * PROBE_NBYTES:
        yield judge_speed(folder)
    yield judge_locks(folder)
    yield judge_reading(folder)


def judge_access(folder: str) -> Finding | None:
    """BAD if no file can be made there: trying tells more than access rights, a file system can be read-only."""
    if not os.path.isdir(folder):
        what = "is no folder" if os.path.lexists(folder) else "does not exist"
        advice = "give the folder of the output" if os.path.lexists(folder) else f"mkdir -p {quote(str(folder))}"
        return Finding("folder", f"{folder} {what}", BAD, advice, FILES)
    try:
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        advice = "choose a folder that you can write to: --out FOLDER here, --out FOLDER/NAME.h5 in runs"
        return Finding("folder", f"cannot write to {os.path.abspath(folder)}: {error.strerror}", BAD, advice, FILES)
    return None


def judge_kind(mount: Mount, folder: str) -> Finding:
    found = f"{os.path.abspath(folder)} on {mount.kind} ({mount.point})"
    if mount.kind.startswith(NETWORK):
        advice = "write to a local or parallel file system and copy the file when complete: SWMR needs POSIX writes"
        return Finding("folder", found, WARN, advice, FILES)
    if mount.kind.startswith(MEMORY):
        return Finding("folder", found, WARN, "it is memory: copy the file before the machine is given back", FILES)
    if mount.kind.startswith(PARALLEL):
        return Finding("folder", found, OK, "see the line on locks; stripe large files", FILES)
    return Finding("folder", found, area=FILES)


def free_bytes(status: os.statvfs_result) -> int:
    return status.f_bavail * status.f_frsize


def judge_room(folder: str, status: os.statvfs_result) -> Finding:
    free = free_bytes(status)
    found = f"{free / 1e9:,.1f} GB free of {status.f_blocks * status.f_frsize / 1e9:,.1f}"
    figures = {"free_bytes": free}
    if free < LEAST_FREE_BYTES:
        return Finding("room", found, WARN, f"make room in {folder}, or choose another --out", FILES, figures)
    if status.f_files and status.f_favail < LEAST_FREE_INODES:
        found += f", room for {status.f_favail} files more"
        return Finding("room", found, WARN, f"delete files on the file system of {folder}", FILES, figures)
    return Finding("room", found, area=FILES, figures=figures)


def judge_speed(folder: str) -> Finding:
    """Write some, have it on disk; then have little on disk, a few times.  The file has no name: nothing is left."""
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        piece = np.random.default_rng(0).bytes(PIECE_NBYTES)  # Zeros would be compressed or not stored.
        written, start = 0, perf_counter()
        while written < PROBE_NBYTES and perf_counter() - start < WRITE_S:
            written += file.write(piece)
        os.fsync(file.fileno())
        rate = written / (perf_counter() - start) / 1e6
        fsyncs_ms: list[float] = []
        start = perf_counter()
        while len(fsyncs_ms) < 10 and perf_counter() - start < WRITE_S / 2:
            before = perf_counter()
            file.write(piece[:4096])
            os.fsync(file.fileno())
            fsyncs_ms.append((perf_counter() - before) * 1e3)
    fsync_ms = statistics.median(fsyncs_ms)
    found = f"{rate:,.0f} MB/s written and on disk, {fsync_ms:.1f} ms per fsync"
    is_slow = rate < SLOW_MB_PER_S or fsync_ms > SLOW_FSYNC_MS
    state, advice = (WARN, "write to a faster file system, or --no-trajectories") if is_slow else (OK, "")
    return Finding("disk", found, state, advice, FILES, {"write_mb_per_s": rate, "fsync_ms": fsync_ms})


def judge_locks(folder: str) -> Finding:
    setting = os.environ.get("HDF5_USE_FILE_LOCKING", "")
    told = f", HDF5_USE_FILE_LOCKING={setting}" if setting else ""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # As HDF5 does.
            acquire(file.fileno())  # As runs do.
    except OSError as error:
        off = setting.upper() in ("FALSE", "BEST_EFFORT", "0")
        advice = (
            "start one run at a time on an --out, and export HDF5_USE_FILE_LOCKING=FALSE for other programs of HDF5; "
            "or have it mounted with locks (Lustre: flock)"
        )
        return Finding("locks", f"none: {error.strerror}{told}", OK if off else WARN, "" if off else advice, FILES)
    return Finding("locks", f"work{told}", area=FILES)


def judge_reading(folder: str) -> Finding:
    """Whether another process can read a file of HDF5 while it is written, as `inspect` does and as after a crash."""
    import h5py

    advice = "choose a local or parallel file system"
    with tempfile.TemporaryDirectory(prefix=".mpi_rollout-doctor-", dir=folder) as probe:
        path = os.path.join(probe, "probe.h5")
        try:
            with h5py.File(path, "x", libver="latest", locking=False) as file:  # As runs do; see `judge_locks`.
                data = file.create_dataset("data", (0,), np.int64, maxshape=(None,), chunks=(512,))
                file.swmr_mode = True
                data.resize((1000,))
                data[:] = 1
                file.flush()
                read = _read(path)
        except Exception as error:
            return Finding("SWMR", f"cannot write: {str(error).splitlines()[0]}", BAD, advice, FILES)
    if read != "1000":
        return Finding("SWMR", f"another process cannot read what is written: {read}", BAD, advice, FILES)
    return Finding("SWMR", "another process reads what is written, while it is written", area=FILES)


def _read(path: str) -> str:
    """The last line of a process that reads the file; this one would be given what it has written from memory."""
    command = [sys.executable, "-c", READER, path]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=5)
    except subprocess.TimeoutExpired:
        return "no end within 5 s"
    return next(iter(reversed((done.stdout.strip() or done.stderr.strip()).splitlines())), "it said nothing")
