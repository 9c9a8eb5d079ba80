"""Ranks that cannot start under srun say why, once, whichever of them comes first: srun ends all when one has left."""

import random
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from jobs import CLONE, HELPERS
from slurm_cluster import Cluster
from submissions import VENVS, Submissions

LATE = str(HELPERS / "late_ranks.py")
NUM_STARTS, NUM_RANKS, AT_ONCE = 100, 4, 8
PYTHONS = {name: str(folder / "bin" / "python") for name, folder in VENVS.items()}
ALONE = "the launcher started 4 processes (SLURM_NTASKS=4) but each is alone in its MPI world; mpi4py loaded "
STOPPED = (
    "stopped by SIGTERM before the first step; give the same command again, "
    "unless a rank on another host has said why it left"
)
RUN = ("--env", "CartPole-v1", "--num-envs", "8", "--num-steps", "5", "--out", "run.h5")


def srun(*arguments: str, num_nodes: int = 1) -> list[str]:
    """Plain srun, without a plugin for MPI, on a cluster that ends the other ranks when one has left."""
    return ["srun", "--kill-on-bad-exit=1", "--overcommit", f"--nodes={num_nodes}", f"-n{NUM_RANKS}", *arguments]


def said(done: subprocess.CompletedProcess) -> list[str]:
    return [line.removeprefix("mpi_rollout: ") for line in done.stderr.splitlines() if line.startswith("mpi_rollout: ")]


def delayed(delays_s: Sequence[float]) -> tuple[str, str]:
    return LATE, ",".join(map(str, delays_s))


def test_a_hundred_starts_that_are_refused_say_why_in_one_line_each(slurm: Cluster, tmp_path: Path):
    """Of ranks without the packages, which come to that within half a second."""
    randoms = random.Random(0)
    delays = [[0.5 * randoms.random() for _ in range(NUM_RANKS)] for _ in range(NUM_STARTS)]

    def start(number: int) -> subprocess.CompletedProcess:
        (tmp_path / str(number)).mkdir()
        command = srun(PYTHONS["MPICH"], "-S", *delayed(delays[number]), num_nodes=1 + number % 2)
        return slurm.run(*command, cwd=tmp_path / str(number), PYTHONPATH=str(CLONE))

    with ThreadPoolExecutor(AT_ONCE) as threads:
        starts = [*threads.map(start, range(NUM_STARTS))]
    words = f"{PYTHONS['MPICH']} has no numpy, gymnasium, h5py, tqdm; "
    wrong = [done for done in starts if done.returncode != 78 or len(said(done)) != 1 or words not in said(done)[0]]
    assert not wrong, wrong[0]


@pytest.mark.parametrize("late_s", [0.0, 0.8])
def test_srun_without_a_plugin_for_mpi_is_refused_in_one_line(submit: Submissions, late_s: float):
    """Also where rank 0 comes to it last."""
    program = (PYTHONS[submit.mpi], *delayed([late_s, 0, 0, 0]), *RUN)
    done = submit.slurm.run(*srun(*program), cwd=submit.folder, PYTHONPATH=str(CLONE))
    assert done.returncode == 78 and len(said(done)) == 1, done.stderr
    assert ALONE in said(done)[0] and [*submit.folder.glob("run.h5*")] == []


def test_a_rank_that_rank_0_keeps_waiting_says_it_in_its_place(slurm: Cluster, tmp_path: Path):
    program = (PYTHONS["MPICH"], "-S", *delayed([60, 0, 0, 0]))
    done = slurm.run(*srun(*program), cwd=tmp_path, PYTHONPATH=str(CLONE))
    [line] = said(done)
    assert done.returncode == 78 and line.startswith("rank 1 (node") and "has no numpy" in line, done.stderr


def test_ranks_that_are_cancelled_before_they_start_say_so_once(slurm: Cluster, tmp_path: Path):
    program = (PYTHONS["MPICH"], "-S", *delayed([60] * NUM_RANKS))
    with ThreadPoolExecutor(1) as threads:
        start = threads.submit(slurm.run, *srun(*program, num_nodes=2), cwd=tmp_path, PYTHONPATH=str(CLONE))
        slurm.wait_until(lambda: len([*tmp_path.glob("late-*")]) == NUM_RANKS or start.done(), "all ranks are late")
        slurm.run("scancel", slurm.run("squeue", "--noheader", "--format=%i").stdout.strip())
    done = start.result()
    assert done.returncode == 75, done.stderr
    assert said(done) == [STOPPED]


def test_a_rank_0_that_comes_last_to_a_host_of_its_own_does_not_take_a_refusal_for_a_stop(
    slurm: Cluster, tmp_path: Path
):
    """It hears the signal alone, which srun sends when others have left; its line must not send anybody astray."""
    (tmp_path / "hosts").write_text("node1\nnode2\nnode2\nnode2\n")
    program = (PYTHONS["MPICH"], "-S", *delayed([60, 0, 0, 0]))
    hosts = {"SLURM_HOSTFILE": str(tmp_path / "hosts")}
    command = srun("--distribution=arbitrary", *program, num_nodes=2)
    done = slurm.run(*command, cwd=tmp_path, PYTHONPATH=str(CLONE), **hosts)
    assert len(said(done)) == 2, done.stderr
    refusal, stop = said(done)
    assert done.returncode == 78 and refusal.startswith("rank 1 (node2)") and stop == STOPPED, done.stderr
