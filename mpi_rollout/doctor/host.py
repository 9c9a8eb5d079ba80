"""The root's host: versions, SLURM, shared memory, the file system of the output, an env."""

import os
import shutil
import statistics
import tempfile
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from time import perf_counter
from typing import IO

import gymnasium
import numpy as np

from mpi_rollout.config import RolloutConfig, versions
from mpi_rollout.core.layout import Contents, SlotLayout
from mpi_rollout.core.spaces import leaves
from mpi_rollout.doctor.findings import OK, WARN, Finding, Report, warning_if
from mpi_rollout.envs.bare import make_bare
from mpi_rollout.envs.env_maker import maker_of
from mpi_rollout.envs.faults import making
from mpi_rollout.envs.repeating import ADVICE, look
from mpi_rollout.errors import StorageError
from mpi_rollout.exchange.world import claimed_local_size, claimed_size
from mpi_rollout.policies.random import BLOCK_STEPS, RandomPolicy
from mpi_rollout.process.rank_variables import variables
from mpi_rollout.storage.ownership import check_place
from mpi_rollout.storage.sandbox import why_not_followed
from mpi_rollout.storage.schema import libraries
from mpi_rollout.text import counted

SHARED_MEMORY = Path("/dev/shm")
LEFTOVERS = "mpich_shm_* sm_segment.* vader_segment.* psm*_shm* Intel_MPI_*"  # What dead jobs leave there.
SHM_BYTES_PER_RANK = 16 * 2**20  # Open MPI's segment; MPICH's are smaller.
PIECE_NBYTES, NUM_PIECES, NUM_FSYNCS, WRITE_S = 16 * 2**20, 4, 10, 1.0
NUM_RESETS, RESETS_S = 5, 1.0
COSTLY_SEED_US = 1000.0  # A reset takes so much longer with a seed, and twice as long, where that is worth words.
SLOW_MB_PER_S, SLOW_FSYNC_MS = 20.0, 100.0
KINDS = {  # First letters of file systems' types, and what runs make of them.
    ("nfs", "cifs", "smb", "9p", "sshfs", "afs"): (
        WARN,
        "write to a local or parallel file system and copy the file when complete: SWMR needs POSIX writes",
    ),
    ("tmpfs", "ramfs"): (WARN, "it is memory: copy the file before the machine is given back"),
    ("lustre", "gpfs", "beegfs", "ceph", "wekafs"): (OK, "stripe large files; Lustre has locks if mounted with flock"),
}


def examine_host(report: Report, folder: str, config: RolloutConfig | None) -> None:
    """Examine this host as the root of a run."""
    checks: dict[str, tuple[str, Callable[[], Finding | None]]] = {  # What to do if it fails, and the check.
        "versions": ("pip install --force-reinstall h5py", judge_versions),
        "slurm": ("start the doctor again", lambda: judge_slurm(variables())),
        "shared memory": ("ask whoever runs this machine about it", lambda: judge_shared_memory(SHARED_MEMORY)),
        "folder": ("choose another folder by --out", lambda: judge_folder(folder)),
        "disk": ("choose another folder by --out", lambda: judge_speed(folder)),
        "SWMR": ("choose a local or parallel file system", lambda: judge_reading(folder)),
    }
    if config is not None:
        checks["env"] = ("try it without MPI: gymnasium.make, reset and step", lambda: judge_env(config))
        checks["seeds"] = ("try it without MPI: reset it twice with one seed", lambda: judge_seeds(config))
    for name, (advice, judge) in checks.items():
        if name not in ("disk", "SWMR") or not report.is_bad("folder"):
            with report.check(name, advice):
                report.add(judge())


def judge_versions() -> Finding:
    """Name the versions of what a run needs besides MPI."""
    return Finding("versions", ", ".join(f"{name} {value}" for name, value in (versions() | libraries()).items()))


def judge_slurm(environ: Mapping[str, str]) -> Finding | None:
    """Check the SLURM job, if there is one."""
    if "SLURM_JOB_ID" not in environ:
        return None
    names = ("NTASKS", "CPUS_PER_TASK", "JOB_NUM_NODES", "MPI_TYPE", "CPU_BIND")
    settings = [f"{name.lower()} {environ['SLURM_' + name]}" for name in names if environ.get("SLURM_" + name)]
    per_task = environ.get("SLURM_CPUS_PER_TASK")
    advice = f"export SRUN_CPUS_PER_TASK={per_task}: srun of SLURM 22.05 to 23.02 does not take it from the job"
    is_lost = bool(per_task) and "SRUN_CPUS_PER_TASK" not in environ
    return warning_if(is_lost, "slurm", ", ".join([f"job {environ['SLURM_JOB_ID']}", *settings]), advice)


def judge_shared_memory(folder: Path) -> Finding:
    """Check whether /dev/shm has room for the ranks of this host."""
    if not folder.is_dir():
        advice = f"mount a tmpfs on {folder}: MPI on one host uses it"
        return warning_if(True, "shared memory", f"no {folder}", advice)
    usage = shutil.disk_usage(folder)
    needed = SHM_BYTES_PER_RANK * claimed_local_size()
    room = f"{usage.free / 1e6:,.0f} MB free of {usage.total / 1e6:,.0f} in {folder}"
    advice = (
        f"make room for {needed / 1e6:,.0f} MB: docker run --shm-size=1g; or, when no job of yours runs on this host, "
        f"delete what dead ones have left: cd {folder}; rm {LEFTOVERS}"
    )
    return warning_if(usage.free < needed, "shared memory", room, advice, shm_free_bytes=usage.free)


def judge_folder(folder: str) -> Finding:
    """Say what runs make of the folder's file system; StorageError if they cannot write there."""
    check_place("out", os.path.join(folder, "rollout.h5"))
    point, kind = mount_of(folder, Path("/proc/self/mounts").read_text())
    state, advice = next((judgement for prefixes, judgement in KINDS.items() if kind.startswith(prefixes)), (OK, ""))
    free = shutil.disk_usage(folder).free
    found = f"{os.path.abspath(folder)} on {kind} ({point}), {free / 1e9:,.1f} GB free"
    return Finding("folder", found, state, advice, {"free_bytes": free})


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


def judge_speed(folder: str) -> Finding:
    """Measure the rate of writing and the time of an fsync.  The file has no name, so nothing is left of it."""
    piece = np.random.default_rng(0).bytes(PIECE_NBYTES)  # Zeros would be compressed or not stored.
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        seconds = _sync_seconds(file, piece, NUM_PIECES)
        fsync_ms = 1e3 * statistics.median(_sync_seconds(file, piece[:4096], NUM_FSYNCS))
    rate = PIECE_NBYTES / statistics.mean(seconds) / 1e6
    speed = f"{rate:,.0f} MB/s written and on disk, {fsync_ms:.1f} ms per fsync"
    advice = "write to a faster file system, or --no-trajectories"
    is_slow = rate < SLOW_MB_PER_S or fsync_ms > SLOW_FSYNC_MS
    return warning_if(is_slow, "disk", speed, advice, write_mb_per_s=rate, fsync_ms=fsync_ms)


def _sync_seconds(file: IO[bytes], data: bytes, most: int) -> list[float]:
    """Write data to the disk several times, for `WRITE_S` at most; return the seconds of each."""
    seconds: list[float] = []
    while len(seconds) < most and sum(seconds) < WRITE_S:
        before = perf_counter()
        file.write(data)
        os.fsync(file.fileno())
        seconds.append(perf_counter() - before)
    return seconds


def judge_reading(folder: str) -> Finding:
    """Check whether another process can read an HDF5 file while it is written, as `inspect` does."""
    with tempfile.TemporaryDirectory(prefix=".mpi_rollout-doctor-", dir=folder) as probe:
        if why_not := why_not_followed(os.path.join(probe, "probe.h5")):
            raise StorageError(f"another process cannot read what is written: {why_not}")
    return Finding("SWMR", "another process reads what is written, while it is written")


def judge_env(config: RolloutConfig) -> Finding:
    """Make one env, reset it a few times, and step it with random actions for a second."""
    make = maker_of(config)
    with making(make.name):
        made = make()
    with closing(made) as env:
        contents = Contents(env.observation_space, env.action_space)
        reset_us, unseeded_us = _reset_us(env, is_seeded=True), _reset_us(env, is_seeded=False)
    policy = RandomPolicy(contents.action_space, range(1), 0)
    rate = make_bare(make, range(1), 0, [policy.at(step) for step in range(BLOCK_STEPS)])(1.0)
    num_here = -(-config.num_envs // claimed_size()[0])
    slot_nbytes = SlotLayout(contents, num_here).nbytes
    nbytes = sum(leaf.nbytes for leaf in leaves(contents.observation_space))
    step_us = 1e6 / rate
    is_costly = reset_us > max(2 * unseeded_us, unseeded_us + COSTLY_SEED_US)
    without = f" with a seed and {unseeded_us:,.1f} without" * is_costly
    advice = "--no-episode-seeds seeds each env at its first reset only" * is_costly
    found = (
        f"{make.name}: {step_us:,.1f} us per step with its resets, {reset_us:,.1f} us per reset{without}, "
        f"observations of {nbytes:,} bytes; the slot of a rank's {counted(num_here, 'env')} has {slot_nbytes:,}"
    )
    figures = {"env_step_us": step_us, "env_reset_us": reset_us, "env_unseeded_reset_us": unseeded_us}
    figures |= {"observation_bytes": nbytes, "slot_bytes": slot_nbytes}
    return Finding("env", found, advice=advice, figures=figures)


def judge_seeds(config: RolloutConfig) -> Finding | None:
    """Check whether an env gives the same episode again from the same seed, also when it is made again."""
    make = maker_of(config)
    if make.is_native or config.ranks_per_env > 1:
        return None
    seed = next(make.seeds(config.seed, 0)) or 0
    found = look(make, seed)
    text = f"env 0 does not repeat its episodes: {found}" if found else "the same seed gives the same episode again"
    advice = f"{ADVICE}; else episodes cannot be stepped again, and a run that is continued may cut those under way"
    return warning_if(bool(found), "seeds", text, advice)


def _reset_us(env: gymnasium.Env, is_seeded: bool) -> float:
    """Return the median time of a few resets in microseconds."""
    resets_s = list[float]()
    while len(resets_s) < NUM_RESETS and sum(resets_s) < RESETS_S:
        seed = len(resets_s) if is_seeded else None
        before = perf_counter()
        env.reset(seed=seed)
        resets_s.append(perf_counter() - before)
    return 1e6 * statistics.median(resets_s)
