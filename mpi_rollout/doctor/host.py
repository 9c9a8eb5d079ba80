"""The root's host: SLURM, HDF5, the output's folder, what dead jobs have left, extras, an env.

What dead jobs have left is reported; nothing is deleted.
"""

import importlib.metadata
import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from time import time

import numpy as np

from mpi_rollout.core.policy_kinds import FORMATS
from mpi_rollout.core.spaces import leaves
from mpi_rollout.doctor.folder import judge_folder
from mpi_rollout.doctor.probe import FILES, LAUNCH, Finding, Reporter, first_few, warning_if
from mpi_rollout.doctor.world import judge_slurm
from mpi_rollout.envs.bare import time_steps

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
        times = time_steps(env)
    finally:
        env.close()
    step_us = float(np.mean(times.step_s)) * 1e6
    summary = f"{env_id}: {step_us:,.1f} us per step, observations of {nbytes:,} bytes"
    if times.steps_per_episode:
        reset_us = times.reset_mean_s * 1e6
        summary += f", {reset_us:,.1f} us per reset after {times.steps_per_episode:,.0f} steps on average"
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
