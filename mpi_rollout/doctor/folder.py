"""The file system of the output: room, speed, locks, and whether others can read a file while it is written."""

import fcntl
import os
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path
from shlex import quote
from time import perf_counter
from typing import NamedTuple

import numpy as np

from mpi_rollout.doctor.probe import BAD, OK, WARN, Finding
from mpi_rollout.storage.ownership import acquire

PROBE_NBYTES, PIECE_NBYTES, WRITE_S = 64 * 2**20, 4 * 2**20, 1.5
SLOW_MB_PER_S, SLOW_FSYNC_MS = 20.0, 100.0
LEAST_FREE_BYTES, LEAST_FREE_INODES = 2**30, 1000
KINDS = (  # First letters of file systems' types, and what runs make of them.
    (
        ("nfs", "cifs", "smb", "9p", "sshfs", "afs"),
        WARN,
        "write to a local or parallel file system and copy the file when complete: SWMR needs POSIX writes",
    ),
    (("tmpfs", "ramfs"), WARN, "it is memory: copy the file before the machine is given back"),
    (("lustre", "gpfs", "beegfs", "ceph", "wekafs"), OK, "see the line on locks; stripe large files"),
)


def default_folder() -> str:
    """Return the folder that `run` writes to; the current one if there is none yet."""
    return "results" if os.path.isdir("results") else "."


class Mount(NamedTuple):
    """Where a file system is mounted, and its type."""

    point: str
    kind: str


def mount_of(folder: str, mounts: str) -> Mount:
    """Return the mount of a folder, from the text of /proc/self/mounts; of mounts that hide each other, the last."""
    kinds = {"/": "unknown"}
    for line in mounts.splitlines():
        _, point, kind, *_ = line.split()
        kinds[point.encode().decode("unicode_escape")] = kind  # Spaces are \040.
    path = Path(folder).resolve()
    point = next(str(parent) for parent in (path, *path.parents) if str(parent) in kinds)
    return Mount(point, kinds[point])


def judge_folder(folder: str) -> Iterator[Finding]:
    """Yield all findings on a folder; if nobody can write to it, that one alone."""
    if refusal := judge_access(folder):
        yield refusal
        return
    yield judge_kind(mount_of(folder, Path("/proc/self/mounts").read_text()), folder)
    room = judge_room(folder)
    yield room
    if room.figures["free_bytes"] > 4 * PROBE_NBYTES:
        yield judge_speed(folder)
    yield judge_locks(folder)
    yield judge_reading(folder)


def judge_access(folder: str) -> Finding | None:
    """Try to make a file, since a file system can be read-only whatever the access rights say; None if that works."""
    if not os.path.isdir(folder):
        what = "is no folder" if os.path.lexists(folder) else "does not exist"
        advice = "give the folder of the output" if os.path.lexists(folder) else f"mkdir -p {quote(str(folder))}"
        return Finding("folder", f"{folder} {what}", BAD, advice)
    try:
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        advice = "choose a folder that you can write to: --out FOLDER here, --out FOLDER/NAME.h5 in runs"
        return Finding("folder", f"cannot write to {os.path.abspath(folder)}: {error.strerror}", BAD, advice)
    return None


def judge_kind(mount: Mount, folder: str) -> Finding:
    """Check the type of the folder's file system."""
    judgements = [(state, advice) for prefixes, state, advice in KINDS if mount.kind.startswith(prefixes)]
    state, advice = next(iter(judgements), (OK, ""))
    return Finding("folder", f"{os.path.abspath(folder)} on {mount.kind} ({mount.point})", state, advice)


def judge_room(folder: str) -> Finding:
    """Check whether the file system has room for data, and for files."""
    status = os.statvfs(folder)
    free = status.f_bavail * status.f_frsize
    room = f"{free / 1e9:,.1f} GB free of {status.f_blocks * status.f_frsize / 1e9:,.1f}"
    state, advice = OK, ""
    if free < LEAST_FREE_BYTES:
        state, advice = WARN, f"make room in {folder}, or choose another --out"
    elif status.f_files and status.f_favail < LEAST_FREE_INODES:
        room += f", room for {status.f_favail} files more"
        state, advice = WARN, f"delete files on the file system of {folder}"
    return Finding("room", room, state, advice, figures={"free_bytes": free})


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
    is_slow = rate < SLOW_MB_PER_S or fsync_ms > SLOW_FSYNC_MS
    state, advice = (WARN, "write to a faster file system, or --no-trajectories") if is_slow else (OK, "")
    return Finding("disk", speed, state, advice, figures={"write_mb_per_s": rate, "fsync_ms": fsync_ms})


def judge_locks(folder: str) -> Finding:
    """Check whether files can be locked, as HDF5 and runs do."""
    setting = os.environ.get("HDF5_USE_FILE_LOCKING", "")
    suffix = f", HDF5_USE_FILE_LOCKING={setting}" if setting else ""
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
        return Finding("locks", f"none: {error.strerror}{suffix}", OK if off else WARN, "" if off else advice)
    return Finding("locks", f"work{suffix}")


def judge_reading(folder: str) -> Finding:
    """Check whether another process can read an HDF5 file while it is written, as `inspect` does."""
    from mpi_rollout.storage.sandbox import why_not_followed

    advice = "choose a local or parallel file system"
    with tempfile.TemporaryDirectory(prefix=".mpi_rollout-doctor-", dir=folder) as probe:
        try:
            why_not = why_not_followed(os.path.join(probe, "probe.h5"))
        except Exception as error:
            return Finding("SWMR", f"cannot write: {str(error).splitlines()[0]}", BAD, advice)
    if why_not:
        return Finding("SWMR", f"another process cannot read what is written: {why_not}", BAD, advice)
    return Finding("SWMR", "another process reads what is written, while it is written")
