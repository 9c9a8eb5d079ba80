"""What dead jobs of this user have left in shared memory and in session folders.  Reports; never deletes."""

import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from time import time

from mpi_rollout.doctor.findings import OK, WARN, Finding, shortened

SHARED_MEMORY = Path("/dev/shm")
SEGMENTS = ("mpich_shm_*", "vader_segment.*", "sm_segment.*", "ompi.*", "ompi_*", "pmix-*", "gds_shmem*", "psm*_shm*",
            "Intel_MPI_*", "ucx_*")  # fmt: skip
SESSIONS = ("ompi.*", "prte.*", "openmpi-sessions-*", "pmix-*")
SHM_BYTES_PER_RANK = 16 * 2**20  # Open MPI's segment; MPICH's are smaller.
YOUNG_S = 60.0  # A segment can be made before it is mapped.
_LOCAL_SIZES = ("OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "SLURM_NTASKS_PER_NODE")


def judge_shared_memory(folder: Path = SHARED_MEMORY) -> list[Finding]:
    """Room in /dev/shm for the ranks of this host."""
    if not folder.is_dir():
        return [Finding("shared memory", f"no {folder}", WARN, f"mount a tmpfs on {folder}: MPI on one host uses it")]
    status = os.statvfs(folder)
    free, total = (blocks * status.f_frsize for blocks in (status.f_bavail, status.f_blocks))
    sizes = [int(os.environ[name]) for name in _LOCAL_SIZES if os.environ.get(name, "").isdigit()]
    needed = SHM_BYTES_PER_RANK * max([1, *sizes])
    found = f"{free / 1e6:,.0f} MB free of {total / 1e6:,.0f} in {folder}"
    if free < needed:
        advice = f"make room for {needed / 1e6:,.0f} MB: delete leftovers, or docker run --shm-size=1g"
        return [Finding("shared memory", found, WARN, advice, figures={"shm_free_bytes": free})]
    return [Finding("shared memory", found, figures={"shm_free_bytes": free})]


def judge_segments(folder: Path = SHARED_MEMORY) -> list[Finding]:
    """Segments of this user that no process of this user has open."""
    candidates = list(_own(folder, SEGMENTS))
    open_paths = paths_in_use(folder) if candidates else set()
    leaked = sorted(path for path in candidates if str(path) not in open_paths)
    nbytes = sum(map(_size, leaked))
    figures = {"leaked_segments": len(leaked), "leaked_bytes": nbytes}
    if not leaked:
        return [Finding("segments", f"none of dead jobs in {folder}", OK, figures=figures)]
    found = f"{nbytes / 1e6:,.1f} MB of dead jobs in {folder}: {shortened((path.name for path in leaked), 3)}"
    patterns = " ".join(f"{folder}/{each}" for each in SEGMENTS if any(path.match(each) for path in leaked))
    advice = f"when no job of yours runs on this host, also in no container: rm {patterns}"
    return [Finding("segments", found, WARN, advice, figures=figures)]


def judge_sessions(folder: Path | None = None) -> list[Finding]:
    """Session folders of this user's launchers that no longer run: those of Open MPI 5 end in their process id."""
    folder = folder or Path(tempfile.gettempdir())
    dead = sorted(
        path.name for path in _own(folder, SESSIONS)
        if path.is_dir() and path.suffix[1:].isdigit() and not Path("/proc", path.suffix[1:]).exists()
        and path.name.count(".") == 1  # `ompi.HOST.UID` and `prte.HOST.UID` end in a user id.
    )  # fmt: skip
    if not dead:
        return [Finding("sessions", f"no folders of dead launchers in {folder}")]
    advice = (
        "delete them when no job of yours runs on this host: an mpirun that gets the process id of one does not start "
        "(PMIx server's listener thread failed to start)"
    )
    return [Finding("sessions", f"{len(dead)} of dead launchers in {folder}: {shortened(dead, 3)}", WARN, advice)]


def _own(folder: Path, patterns: Iterable[str]) -> Iterable[Path]:
    """Entries of this user that are not just being made."""
    for path in {path for pattern in patterns for path in folder.glob(pattern)}:
        try:
            status = path.lstat()
        except OSError:
            continue  # Gone meanwhile.
        if status.st_uid == os.getuid() and time() - status.st_mtime > YOUNG_S:
            yield path


def _size(path: Path) -> int:
    try:
        return path.stat().st_blocks * 512
    except OSError:
        return 0


def paths_in_use(folder: Path) -> set[str]:
    """Files of a folder that processes have mapped, as far as this user may see."""
    found: set[str] = set()
    for maps in Path("/proc").glob("[0-9]*/maps"):
        try:
            lines = maps.read_text().splitlines()
        except OSError:
            continue  # Ended, or another user's.
        found |= {line.split(maxsplit=5)[5] for line in lines if f" {folder}/" in line}
    return found
