"""Kill a run at random moments, continue it until it is complete, and compare it with one that nothing stopped.

    python tools/kill_and_resume.py --kills 50 --seed 0 --env CartPole-v1
    python tools/kill_and_resume.py --kills 20 --env-factory stopping_envs:Image --num-envs 12 --num-steps 3000

Every start is on another number of ranks, in another mode.  One rank or the launcher is killed by SIGKILL, before,
amid or after what a continued run does first.  When a run is complete and kills are left, the next one begins, with
another seed.  Exit code 0: all bytes are equal, nothing hung.
"""

import argparse
import os
import random
import signal
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import h5py

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "helpers"))

from jobs import Job, Result, Running, are_gone, assert_same_bytes, datasets, processes_in, rank_of

HANGS_AFTER_S = 120.0
LEFT_AFTER_S = 30.0  # What is left of a killed job must be gone by then.
WAYS = (
    (),
    (),
    ("--batch-size", "1"),
    ("--num-groups", "2"),
    ("--root-envs", "0"),
)


@dataclass
class Tally:
    """What happened over all kills."""

    kills: int = 0
    starts: int = 0
    complete: int = 0
    hung: int = 0
    refused: list[str] = field(default_factory=list)
    different: list[str] = field(default_factory=list)


def committed(folder: Path) -> int:
    """The steps that are safe; 0 where nothing is."""
    try:
        with h5py.File(folder / "run.h5.part", libver="latest", swmr=True) as file:
            return int(file["trajectories"].attrs["num_steps"])
    except (OSError, KeyError):
        return 0


def victims(run: Running) -> dict[str, int]:
    """The processes of a job by what they are called."""
    found = {"launcher": run.pid}
    for pid in processes_in(run.folder):
        if (rank := rank_of(pid)) is not None and b"mpi_rollout" in Path(f"/proc/{pid}/cmdline").read_bytes():
            found[f"rank {rank}"] = pid
    return found


def wait_for_end(run: Running, until: float) -> bool:
    """Wait until a job has ended, no longer than `until`; tell whether it has."""
    while run._process.poll() is None and time.monotonic() < until:
        time.sleep(0.01)
    return run._process.poll() is not None


def kill_one(run: Running, draws: random.Random) -> str:
    """Kill one process of a job; return what it is called, "" if all had gone."""
    try:
        name, pid = draws.choice(sorted(victims(run).items()))
        os.kill(pid, signal.SIGKILL)
    except OSError:
        return ""
    return name


def is_gone(folder: Path) -> bool:
    """Whether what is left of a killed job has ended by itself, in time."""
    if are_gone(folder):
        return True
    for pid in processes_in(folder):
        os.kill(pid, signal.SIGKILL)
    return False


def start(job: Job, arguments: list[str], draws: random.Random) -> tuple[Running, int, tuple[str, ...]]:
    """Start or continue the run on some ranks, in some mode."""
    num_ranks, way = draws.choice((1, 2, 2, 3, 4)), draws.choice(WAYS)
    if "--root-envs" in way and num_ranks == 1:
        way = ()
    return job.start(num_ranks, *arguments, "--out", "run.h5", "--progress", "none", *way), num_ranks, way


def kill_until_complete(job: Job, arguments: list[str], options: argparse.Namespace, draws, tally: Tally) -> Result:
    """Start, kill and start again; return how the last start ended."""
    longest_s = options.seconds
    while True:
        before = committed(job.folder)
        run, num_ranks, way = start(job, arguments, draws)
        tally.starts += 1
        begun = time.monotonic()
        if tally.kills < options.kills:
            wait_for_end(run, begun + draws.uniform(0.0, longest_s))
            if run._process.poll() is None and (name := kill_one(run, draws)):
                killed_after_s = time.monotonic() - begun
                tally.kills += 1
                if not (wait_for_end(run, time.monotonic() + LEFT_AFTER_S) and is_gone(job.folder)):
                    tally.hung += 1
                run.kill()
                run.finish()
                after = committed(job.folder)
                print(
                    f"{tally.kills:4} {num_ranks:5} {' '.join(way) or '-':16} {name:9} {killed_after_s:6.2f} s "
                    f"{before:8,} {after:8,}",
                    flush=True,
                )
                if after < before and not (job.folder / "run.h5").exists():
                    tally.different.append(f"after kill {tally.kills} {before - after} committed steps were lost")
                continue
        if not wait_for_end(run, begun + HANGS_AFTER_S):
            tally.hung += 1
            run.kill()
            return run.finish()
        return run.finish()


def compare(job: Job, arguments: list[str], seed: int, tally: Tally) -> None:
    """Compare a complete run with one that nothing stopped."""
    whole = job(2, *arguments, "--out", "whole.h5", "--progress", "none", timeout=600.0)
    if whole.code != 0:
        raise SystemExit(whole.err)
    try:
        assert_same_bytes(datasets(job.folder / "run.h5"), datasets(job.folder / "whole.h5"))
    except AssertionError as error:
        tally.different.append(f"with --seed {seed} {str(error).splitlines()[0]}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0, help="of the kills, and of the first run")
    parser.add_argument("--env", default=None)
    parser.add_argument("--env-factory", default=None)
    parser.add_argument("--env-kwargs", default="{}")
    parser.add_argument("--num-envs", default="8")
    parser.add_argument("--num-steps", default="30000")
    parser.add_argument("--seconds", type=float, default=3.0, help="a kill comes within so many after the start")
    options = parser.parse_args()
    env = ["--env-factory", options.env_factory] if options.env_factory else ["--env", options.env or "CartPole-v1"]
    draws, tally, seed = random.Random(options.seed), Tally(), options.seed
    print("kill ranks how              killed    after     committed before and after", flush=True)
    begun = time.monotonic()
    while tally.kills < options.kills and not tally.hung:
        arguments = [*env, "--env-kwargs", options.env_kwargs, "--num-envs", options.num_envs]
        arguments += ["--num-steps", options.num_steps, "--seed", str(seed)]
        with tempfile.TemporaryDirectory(prefix="kill_and_resume-") as folder:
            job = Job(Path(folder).resolve())
            result = kill_until_complete(job, arguments, options, draws, tally)
            if result.code == 0 and not tally.hung:
                tally.complete += 1
                compare(job, arguments, seed, tally)
            elif not tally.hung:
                tally.refused.append(f"with --seed {seed} exit code {result.code}: {result.messages}")
        seed += 1
    print(
        f"{tally.kills} kills in {tally.starts} starts, {tally.complete} runs complete, {tally.hung} hung, "
        f"{len(tally.refused)} failed, {len(tally.different)} differences; {time.monotonic() - begun:.0f} s"
    )
    print(*tally.refused, *tally.different, sep="\n", end="")
    return 1 if tally.hung or tally.refused or tally.different else 0


if __name__ == "__main__":
    sys.exit(main())
