"""The file system of the output: room, speed, locks, and whether others can read a file while it is written."""

import fcntl
import os
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path
from shlex import quote
from time import perf_counter

import numpy as np

from mpi_rollout.doctor.probe import BAD, OK, WARN, Finding, warning_if
from mpi_rollout.storage.ownership import acquire
from mpi_rollout.text import first_line

PROBE_NBYTES, PIECE_NBYTES, WRITE_S = 64 * 2**20, 4 * 2**20, 1.5
SLOW_MB_PER_S, SLOW_FSYNC_MS = 20.0, 100.0
LEAST_FREE_BYTES, LEAST_FREE_INODES = 2**30, 1000
KINDS = {  # First letters of file systems' types, and what runs make of them.
    ("nfs", "cifs", "smb", "9p", "sshfs", "afs"): (
        WARN,
        "write to a local or parallel file system and copy the file when complete: SWMR needs POSIX writes",
    ),
    ("tmpfs", "ramfs"): (WARN, "it is memory: copy the file before the machine is given back"),
    ("lustre", "gpfs", "beegfs", "ceph", "wekafs"): (OK, "see the line on locks; stripe large files"),
}


def judge_folder(folder: str) -> Iterator[Finding]:
    """Yield all findings on a folder; if nobody can write to it, that one alone."""
    if refusal := judge_access(folder):
        yield refusal
        return
    point, kind = mount_of(folder, Path("/proc/self/mounts").read_text())
    judgements = [judgement for prefixes, judgement in KINDS.items() if kind.startswith(prefixes)]
    yield Finding("folder", f"{os.path.abspath(folder)} on {kind} ({point})", *next(iter(judgements), (OK, "")))
    room = judge_room(folder)
    yield room
    if room.figures["free_bytes"] > 4 * PROBE_NBYTES:
        yield judge_speed(folder)
    yield judge_locks(folder)
    yield judge_reading(folder)


def judge_access(folder: str) -> Finding | None:
    """Try to make a file, since a file system can be read-only whatever the access rights say; None if that works."""
    if not os.path.isdir(folder):
        if os.path.lexists(folder):
            return Finding("folder", f"{folder} is no folder", BAD, "give the folder of the output")
        return Finding("folder", f"{folder} does not exist", BAD, f"mkdir -p {quote(folder)}")
    try:
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        advice = "choose a folder that you can write to: --out FOLDER here, --out FOLDER/NAME.h5 in runs"
        return Finding("folder", f"cannot write to {os.path.abspath(folder)}: {error.strerror}", BAD, advice)
    return None


def mount_of(folder: str, mounts: str) -> tuple[str, str]:
    """Return where a folder's file system is mounted, and its type; `mounts` is the text of /proc/self/mounts.

    Of mounts that hide each other, the last counts.
    """
    kinds = {"/": "unknown"}
    for line in mounts.splitlines():
        _, point, kind, *_ = line.split()
        kinds[point.encode().decode("unicode_escape")] = kind  # Spaces are \040.
    path = Path(folder).resolve()
    point = next(str(parent) for parent in (path, *path.parents) if str(parent) in kinds)
    return point, kinds[point]


def judge_room(folder: str) -> Finding:
    """Check whether the file system has room for data, and for files."""
    status = os.statvfs(folder)
    free = status.f_bavail * status.f_frsize
    room, advice = f"{free / 1e9:,.1f} GB free of {status.f_blocks * status.f_frsize / 1e9:,.1f}", ""
    if free < LEAST_FREE_BYTES:
        advice = f"make room in {folder}, or choose another --out"
    elif status.f_files and status.f_favail < LEAST_FREE_INODES:
        room += f", room for {status.f_favail} files more"
        advice = f"delete files on the file system of {folder}"
    return warning_if(bool(advice), "room", room, advice, free_bytes=free)


def judge_speed(folder: str) -> Finding:
    """Measure the rate of writing and the time of an fsync.  The file has no name, so nothing is left of it."""
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
    speed = f"{rate:,.0f} MB/s written and on disk, {fsync_ms:.1f} ms per fsync"
    advice = "write to a faster file system, or --no-trajectories"
    is_slow = rate < SLOW_MB_PER_S or fsync_ms > SLOW_FSYNC_MS
    return warning_if(is_slow, "disk", speed, advice, write_mb_per_s=rate, fsync_ms=fsync_ms)


def judge_locks(folder: str) -> Finding:
    """Check whether files can be locked, as HDF5 and runs do."""
    setting = os.environ.get("HDF5_USE_FILE_LOCKING", "")
    found = "work"
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # As HDF5 does.
            acquire(file.fileno())  # As runs do.
    except OSError as error:
        found = f"none: {error.strerror}"
    advice = (
        "start one run at a time on an --out, and export HDF5_USE_FILE_LOCKING=FALSE for other programs of HDF5; "
        "or have it mounted with locks (Lustre: flock)"
    )
    is_bad = found != "work" and setting.upper() not in ("FALSE", "BEST_EFFORT", "0")
    return warning_if(is_bad, "locks", found + (f", HDF5_USE_FILE_LOCKING={setting}" if setting else ""), advice)


def judge_reading(folder: str) -> Finding:
    """Check whether another process can read an HDF5 file while it is written, as `inspect` does."""
    from mpi_rollout.storage.sandbox import why_not_followed

    with tempfile.TemporaryDirectory(prefix=".mpi_rollout-doctor-", dir=folder) as probe:
        try:
            why_not = why_not_followed(os.path.join(probe, "probe.h5"))
        except Exception as error:
            return Finding("SWMR", f"cannot write: {first_line(error)}", BAD, "choose a local or parallel file system")
    if why_not:
        words = f"another process cannot read what is written: {why_not}"
        return Finding("SWMR", words, BAD, "choose a local or parallel file system")
    return Finding("SWMR", "another process reads what is written, while it is written")
