"""The root's host: HDF5, what dead jobs have left, extras, an env, and the file system of the output.

What dead jobs have left is reported; nothing is deleted.
"""

import fcntl
import importlib.metadata
import os
import statistics
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from shlex import quote
from time import perf_counter, time

import numpy as np

from mpi_rollout.core.policy_kinds import FORMATS
from mpi_rollout.core.spaces import leaves
from mpi_rollout.doctor.probe import BAD, FILES, LAUNCH, OK, WARN, Finding, Reporter, first_few, warning_if
from mpi_rollout.doctor.world import judge_slurm
from mpi_rollout.envs.bare import time_steps
from mpi_rollout.storage.ownership import acquire
from mpi_rollout.text import first_line

EXTRAS = (
    *("mujoco", "ale_py", "matplotlib"),
    *dict.fromkeys(form.package for form in FORMATS.values()),
    *("minari", "envpool", "hdf5plugin", "imageio_ffmpeg"),
)
SHARED_MEMORY = Path("/dev/shm")
SEGMENTS = (
    *("mpich_shm_*", "vader_segment.*", "sm_segment.*", "ompi.*", "ompi_*", "pmix-*", "gds_shmem*", "psm*_shm*"),
    *("Intel_MPI_*", "ucx_*"),
)
SESSIONS = ("ompi.*", "prte.*", "openmpi-sessions-*", "pmix-*")
SHM_BYTES_PER_RANK = 16 * 2**20  # Open MPI's segment; MPICH's are smaller.
YOUNG_S = 60.0  # A segment can be made before it is mapped.
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
_LOCAL_SIZES = ("OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "SLURM_NTASKS_PER_NODE")


def examine_host(report: Reporter, folder: str, env_id: str | None) -> None:
    """Examine this host as the root of a run."""
    report.check("slurm", "start the doctor again", LAUNCH, lambda: judge_slurm(os.environ))
    report.check("HDF5", "pip install --force-reinstall h5py", LAUNCH, judge_hdf5)
    advice = "choose another folder by --out; delete .mpi_rollout-doctor-* in it, if there is one"
    report.check("folder", advice, FILES, lambda: judge_folder(folder))
    advice = "ask whoever runs this machine about /dev/shm"
    report.check("shared memory", advice, LAUNCH, lambda: [judge_shared_memory(SHARED_MEMORY)])
    report.check("segments", "look into /dev/shm", LAUNCH, lambda: [judge_segments(SHARED_MEMORY)])
    report.check("sessions", "look into TMPDIR", LAUNCH, lambda: [judge_sessions(Path(tempfile.gettempdir()))])
    report.check("extras", "look at pip list", LAUNCH, judge_extras)
    if env_id is not None:
        advice = "try the env without MPI: gymnasium.make, reset and step in a Python of this environment"
        report.check("env", advice, LAUNCH, lambda: judge_env(env_id))
    report.done()


def judge_hdf5() -> Iterator[Finding]:
    """Name the versions of h5py and HDF5."""
    from mpi_rollout.storage.schema import libraries

    versions = libraries()
    yield Finding("HDF5", f"h5py {versions['h5py']}, HDF5 {versions['hdf5']}")


def judge_extras() -> Iterator[Finding]:
    """Name the optional packages, without importing them: some take seconds."""
    installed, absent = [], []
    for name in EXTRAS:
        try:
            installed.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            installed += [f"{name} (version unknown)"] * bool(find_spec(name))
            absent += [name] * (not find_spec(name))
    yield Finding("extras", f"{', '.join(installed) or 'none'}; not installed: {', '.join(absent) or 'none'}")


def judge_env(env_id: str) -> Iterator[Finding]:
    """Make one env and step it with random actions for a second."""
    from mpi_rollout.envs.env_maker import EnvMaker

    env = EnvMaker(env_id)()
    try:
        nbytes = sum(leaf.nbytes for leaf in leaves(env.observation_space))
        step_s, reset_s = time_steps(env)
    finally:
        env.close()
    step_us = float(step_s.mean()) * 1e6
    summary = f"{env_id}: {step_us:,.1f} us per step, observations of {nbytes:,} bytes"
    if len(reset_s):
        reset_us = reset_s.mean() * 1e6
        summary += f", {reset_us:,.1f} us per reset after {len(step_s) / len(reset_s):,.0f} steps on average"
    yield Finding("env", summary, figures={"env_step_us": step_us, "observation_bytes": nbytes})


def judge_shared_memory(folder: Path) -> Finding:
    """Check whether /dev/shm has room for the ranks of this host."""
    if not folder.is_dir():
        advice = f"mount a tmpfs on {folder}: MPI on one host uses it"
        return warning_if(True, "shared memory", f"no {folder}", advice)
    status = os.statvfs(folder)
    free, total = (blocks * status.f_frsize for blocks in (status.f_bavail, status.f_blocks))
    sizes = [int(os.environ[name]) for name in _LOCAL_SIZES if os.environ.get(name, "").isdigit()]
    needed = SHM_BYTES_PER_RANK * max([1, *sizes])
    room = f"{free / 1e6:,.0f} MB free of {total / 1e6:,.0f} in {folder}"
    advice = f"make room for {needed / 1e6:,.0f} MB: delete leftovers, or docker run --shm-size=1g"
    return warning_if(free < needed, "shared memory", room, advice, shm_free_bytes=free)


def judge_segments(folder: Path) -> Finding:
    """Look for segments of this user that no process of this user has open."""
    sizes = _own(folder, SEGMENTS)
    open_paths = paths_in_use(folder) if sizes else set()
    leaked = sorted(path for path in sizes if str(path) not in open_paths)
    nbytes = sum(sizes[path] for path in leaked)
    found = f"none of dead jobs in {folder}"
    if leaked:
        found = f"{nbytes / 1e6:,.1f} MB of dead jobs in {folder}: {first_few((path.name for path in leaked), 3)}"
    patterns = [f"{folder}/{pattern}" for pattern in SEGMENTS if any(path.match(pattern) for path in leaked)]
    advice = f"when no job of yours runs on this host, also in no container: rm {' '.join(patterns)}"
    return warning_if(bool(leaked), "segments", found, advice, leaked_segments=len(leaked), leaked_bytes=nbytes)


def judge_sessions(folder: Path) -> Finding:
    """Look for folders of this user's launchers that no longer run, by the process id in their names.

    Open MPI 5 names them so; `prte.HOST.UID` ends in a user id instead.
    """
    names = [path.name for path in _own(folder, SESSIONS) if path.is_dir()]
    ids = {name: name.partition(".")[2] for name in names}
    dead = sorted(name for name, number in ids.items() if number.isdigit() and not Path("/proc", number).exists())
    found = f"no folders of dead launchers in {folder}"
    if dead:
        found = f"{len(dead)} of dead launchers in {folder}: {first_few(dead, 3)}"
    advice = (
        "delete them when no job of yours runs on this host: an mpirun that gets the process id of one does not start "
        "(PMIx server's listener thread failed to start)"
    )
    return warning_if(bool(dead), "sessions", found, advice)


def _own(folder: Path, patterns: Iterable[str]) -> dict[Path, int]:
    """Return entries of this user that are not just being made, and how many bytes each has."""
    nbytes: dict[Path, int] = {}
    for path in {path for pattern in patterns for path in folder.glob(pattern)}:
        with suppress(OSError):  # Gone meanwhile.
            status = path.lstat()
            if status.st_uid == os.getuid() and time() - status.st_mtime > YOUNG_S:
                nbytes[path] = status.st_blocks * 512
    return nbytes


def paths_in_use(folder: Path) -> set[str]:
    """Return the files of a folder that processes have mapped, as far as this user may see."""
    paths: set[str] = set()
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with suppress(OSError):  # Ended, or another user's.
            lines = maps.read_text().splitlines()
            paths |= {line.split(maxsplit=5)[5] for line in lines if f" {folder}/" in line}
    return paths


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
