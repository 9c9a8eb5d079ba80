"""Play every fault that a job can meet, and print what its user sees and how soon it is over, as a table.

    .venv/bin/python tools/fault_matrix.py --ranks 2,3 --repeats 3
    .venv/bin/python tools/fault_matrix.py --only kill

With the MPI of the interpreter that runs it.  Seconds are from the fault, or from the job's start if it is there by
then, to the end of the last process.  Exit code 1: a job hung, left processes behind, lost committed steps, or ended
without failing.  A fault more is an entry more in FAULTS.
"""

import argparse
import os
import re
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "helpers"))

from jobs import Job, Result, Running, are_gone, preloadable, worlds
from stopped_runs import OUT, PACED, committed, fails, kwargs

HANGS_S = 60.0
SHOWN = 150  # Characters of what the user sees.
ENVS = ("--num-envs", "24", "--progress", "none")  # A block of `envs.Image` is full, and committed, after 64 steps.
MOODY = ("--env-factory", "seeded_faults:Moody")
LATE = 200  # The fourth block can only be begun when the first one is committed.
LONG = ("--num-steps", "100000000")
PART = "run.h5.part"


@dataclass(frozen=True)
class Fault:
    """One fault.

    Parameters
    ----------
    arguments
        Of the run that meets it.
    strike
        What is done to the job when some of its steps are committed; without it the job meets the fault by itself.
    before
        What is there when the job starts; what it starts is ended afterwards.
    command
        Instead of the usual one, for a number of ranks.
    environment
        Variables of the job; DISK_FAULT is for disk.c.
    goes_on
        The run comes to its end.
    from_start
        Seconds are from the start of the job.
    """

    name: str
    arguments: tuple[str, ...] = (*PACED, *LONG, *ENVS, *OUT)
    strike: Callable[[Running], None] | None = None
    before: Callable[[Job], Running | None] = lambda job: None
    command: Callable[[Job, int], list[str]] | None = None
    environment: dict[str, str] = field(default_factory=dict)
    goes_on: bool = False
    from_start: bool = False


@dataclass(frozen=True)
class Outcome:
    """How a job with a fault ended."""

    code: int
    seen: str
    seconds: float
    wrong: str  # "" or what must not be.


def num_ranks_of(run: Running) -> int:
    return int(run.command[run.command.index("-n") + 1])


def last_rank(run: Running) -> int:
    """The process of the last rank."""
    return run.pid_of(num_ranks_of(run) - 1)


def leader(run: Running) -> int:
    """The process that writes the second of two shards."""
    return run.pid_of(num_ranks_of(run) // 2)


def with_one_bad_disk(job: Job, num_ranks: int) -> list[str]:
    """The command of a run of two teams; the disk of the first one works."""
    words = job.command(num_ranks, *ENDLESS, *SHARDED)
    is_well = '[ "${OMPI_COMM_WORLD_RANK:-$PMI_RANK}" = 0 ] && unset DISK_FAULT; exec "$@"'
    return [*words[:3], "sh", "-c", is_well, "sh", *words[3:]]


def num_safe(folder: Path, name: str = PART) -> int:
    """The steps that a file says it has, or each of two shards."""
    shards = [*(folder / "run.h5.shards").glob("*")]
    return committed(folder / name) if not shards else min(map(committed, shards)) if len(shards) > 1 else 0


def pause(run: Running) -> None:
    pid = last_rank(run)
    os.kill(pid, signal.SIGSTOP)
    time.sleep(2.0)
    os.kill(pid, signal.SIGCONT)


def of_another_seed(job: Job) -> None:
    """A run that failed after some steps, to be continued with another seed."""
    job(None, *fails("raise"), "--seed", "7")


def damaged(job: Job) -> None:
    """The same, with half of its file."""
    job(None, *fails("raise"))
    part = job.folder / PART
    part.write_bytes(part.read_bytes()[: part.stat().st_size // 2])


def another_run(job: Job) -> Running:
    """A run on the same output that is under way, with another folder as its own."""
    folder = job.folder / "first"
    folder.mkdir()
    run = Job(folder).start(None, *PACED, *LONG, *ENVS, "--out", str(job.folder / "run.h5"))
    run.wait_until(lambda: committed(job.folder / PART))
    return run


def late(how: str, **more: object) -> tuple[str, ...]:
    """An env of rank 1 that fails when some steps are committed."""
    return (*fails(how, 1, after=LATE, num_steps=10**6, **more), *ENVS)


def restarted(how: str, num_steps: int = 450) -> tuple[str, ...]:
    """An env of rank 1 that fails now and then in a run that goes on."""
    env = "--env-factory", "failing_envs:failing", *kwargs(how=how, rank=1, after=LATE)
    return *env, "--num-steps", str(num_steps), *ENVS, *OUT, "--max-env-restarts", "10"


LIMITED, CHECKED = (
    ("--env-timeout-s", "1"),
    (
        "--env-checks",
        "finite",
    ),
)
SHORT = ("--env-factory", "envs:Image", "--num-steps", "450", *ENVS, *OUT)
ENDLESS = ("--env-factory", "envs:Image", *LONG, *ENVS, *OUT)
WITH_PROCESSES = ("--env-factory", "leaving_envs:Filming", *LONG, *ENVS, *OUT)
SHARDED, TEAMS = ("--storage", "sharded"), {"MPI_ROLLOUT_NODES": "2"}  # Needs four ranks: two for each shard.
OF_TEAMS = (*PACED, *LONG, *ENVS, *OUT, *SHARDED)
DIFFERENT = (["--num-steps", "20", *ENVS, *OUT, "--env", "CartPole-v1"], ["--seed", "7"])
FAULTS = [
    Fault("exception in an env", late("raise")),
    Fault("exception in an env while the disk is slow", late("raise"), environment={"DISK_FAULT": "slow:20000"}),
    Fault("`sys.exit(0)` in an env", late("exit")),
    Fault("observation of a wrong shape", late("shape", image=False)),
    Fault(
        "exception in a reset", ("--env-factory", "failing_envs:InReset", *kwargs(episode=30), *LONG, *ENVS, *OUT)
    ),
    Fault(
        "exception in the policy",
        ("--env-factory", "failing_envs:Continuous", *LONG, *ENVS, *OUT, "--policy", "failing_envs:raises_later"),
    ),
    Fault("exception in an env, `--max-env-restarts 10`", restarted("raise"), goes_on=True),
    Fault("the same, more often than `--max-env-restarts`", (*restarted("raise", 10**6)[:-1], "1")),
    Fault("an env hangs, `--env-timeout-s 1`", (*late("hang"), *LIMITED)),
    Fault("an env hangs, with `--max-env-restarts 10` too", (*restarted("hang", 250), *LIMITED), goes_on=True),
    Fault("an env works in C for ever, `--env-timeout-s 1`", (*late("work in C"), *LIMITED)),
    Fault("an env hangs in C and holds Python's lock, `--env-timeout-s 1`", (*late("hold the lock"), *LIMITED)),
    Fault("NaN, `--env-checks finite`", (*MOODY, *kwargs(how="nan"), *LONG, *ENVS, *OUT, *CHECKED)),
    Fault("`os._exit(7)` in an env", late("os_exit")),
    Fault("segmentation fault in an env", late("segfault")),
    Fault("`kill -9` of a worker", strike=lambda run: os.kill(last_rank(run), signal.SIGKILL)),
    Fault("`kill -9` of the root", strike=lambda run: os.kill(run.pid_of(0), signal.SIGKILL)),
    Fault("`kill -9` of mpirun", strike=lambda run: os.kill(run.pid, signal.SIGKILL)),
    Fault("`kill -9` of a worker whose envs have processes", WITH_PROCESSES,
          strike=lambda run: os.kill(last_rank(run), signal.SIGKILL)),
    Fault("`kill -9` of mpirun, and envs have processes", WITH_PROCESSES,
          strike=lambda run: os.kill(run.pid, signal.SIGKILL)),
    Fault("a worker stopped for 2 s (`kill -STOP`, `-CONT`)", (*PACED, "--num-steps", "450", *ENVS, *OUT),
          strike=pause, goes_on=True),
    Fault("Ctrl-C on mpirun", strike=lambda run: os.killpg(run.pid, signal.SIGINT)),
    Fault("SIGTERM to mpirun", strike=lambda run: os.kill(run.pid, signal.SIGTERM)),
    Fault("SIGUSR1 to mpirun", strike=lambda run: os.kill(run.pid, signal.SIGUSR1)),
    Fault("SIGTERM to a worker", strike=lambda run: os.kill(last_rank(run), signal.SIGTERM)),
    Fault(
        "`--max-walltime 00:10` is near", (*PACED, *LONG, *ENVS, *OUT, "--max-walltime", "00:10"), from_start=True
    ),
    Fault("disk full", ENDLESS, environment={"DISK_FAULT": "full:20000000"}),
    Fault("quota used up", ENDLESS, environment={"DISK_FAULT": "quota:20000000"}),
    Fault("shards: `kill -9` of the rank that writes one", OF_TEAMS, environment=TEAMS,
          strike=lambda run: os.kill(leader(run), signal.SIGKILL)),
    Fault("shards: `kill -9` of another rank of its team", OF_TEAMS, environment=TEAMS,
          strike=lambda run: os.kill(last_rank(run), signal.SIGKILL)),
    Fault("shards: `kill -9` of the root", OF_TEAMS, environment=TEAMS,
          strike=lambda run: os.kill(run.pid_of(0), signal.SIGKILL)),
    Fault("shards: SIGTERM to a rank that writes none", OF_TEAMS, environment=TEAMS,
          strike=lambda run: os.kill(last_rank(run), signal.SIGTERM)),
    Fault("shards: disk full on one node", command=with_one_bad_disk,
          environment={"DISK_FAULT": "full:20000000", **TEAMS}),
    Fault("disk slower than the envs", SHORT, environment={"DISK_FAULT": "slow:20000"}, goes_on=True),
    Fault("file system without locks", SHORT, environment={"DISK_FAULT": "no_locks"}, goes_on=True),
    Fault("folder that cannot be written to", (*PACED, *LONG, *ENVS, "--out", "/sys/run.h5"), from_start=True),
    Fault("folder that is missing", (*PACED, *LONG, *ENVS, "--out", "missing/run.h5"), from_start=True),
    Fault("another run writes the same output", before=another_run, from_start=True),
    Fault("continued with another `--seed`", fails("raise"), before=of_another_seed, from_start=True),
    Fault("the `.part` is damaged", fails("raise"), before=damaged, from_start=True),
    Fault("an env that cannot be made on one rank",
          ("--env-factory", "failing_envs:unlicensed", *kwargs(rank=1), *LONG, *ENVS, *OUT), from_start=True),
    Fault("more ranks than envs", (*PACED, *LONG, *OUT, "--num-envs", "1"), from_start=True),
    Fault("ranks with different options",
          command=lambda job, num_ranks: worlds(
              job.folder, (num_ranks - 1, DIFFERENT[0]), (1, [*DIFFERENT[0], *DIFFERENT[1]])
          ), from_start=True),
    Fault("a wrong option", (*PACED, *OUT, "--num-stepz", "5"), from_start=True),
    Fault("launcher of another MPI (each process alone)",
          command=lambda job, num_ranks: job.command(None, *PACED, *LONG, *ENVS, *OUT),
          environment={"SLURM_NTASKS": "2", "SLURM_STEP_ID": "0"}, from_start=True),
]  # fmt: skip


def seen(result: Result, folder: Path) -> str:
    """The first thing said: the program's own, else the launcher's."""
    if result.code == 0 and not result.messages:
        return "nothing but the summary of a complete run"
    said = [line for line in result.err.splitlines() if " take about " not in line]  # How large the file will be.
    stripped = "\n".join(line.strip(" =-*") for line in [*said, "", *result.out.splitlines()])
    others = (" ".join(paragraph.split()) for paragraph in re.split(r"\n\s*\n", stripped))
    messages = [line for line in result.messages if " take about " not in line]
    [line, *_] = [*messages, *filter(None, others), "nothing"]
    line = line.replace(f"{folder}/", "").replace(str(folder), "FOLDER").replace("|", "\\|")
    return line if len(line) <= SHOWN else f"{line[:SHOWN].rsplit(' ', 1)[0]} ..."


def play(fault: Fault, num_ranks: int, folder: Path, disk: str) -> Outcome:
    """Start a job, have it meet the fault, and wait for the end of its last process."""
    job = Job(folder, forks=False)
    other = fault.before(job)
    command = fault.command(job, num_ranks) if fault.command else job.command(num_ranks, *fault.arguments)
    preload = {"LD_PRELOAD": disk} if "DISK_FAULT" in fault.environment else {}
    run = Running(command, folder, **fault.environment, **preload)
    began, before = time.time(), 0
    try:
        if fault.strike is not None:
            run.wait_until(lambda: num_safe(folder))
            before = num_safe(folder)
            began = time.time()
            fault.strike(run)
        result = run.finish(HANGS_S)
        is_gone = are_gone(folder)
    except pytest.fail.Exception as error:
        run.kill()
        return Outcome(-1, str(error).splitlines()[0], HANGS_S, "hung")
    finally:
        ended = time.time()
        if other is not None:
            other.kill()
            other.finish()
    failed_at = folder / "failed_at"
    if failed_at.exists() and not fault.from_start:
        began = failed_at.stat().st_mtime
    after = num_safe(folder, "run.h5" if fault.goes_on else PART)
    wrong = "left processes" if not is_gone else "lost steps" if after < before else ""
    if (result.code == 0) != fault.goes_on:
        wrong = wrong or f"exit code {result.code}"
    run.kill()
    return Outcome(result.code, seen(result, folder), ended - began, wrong)


def row(fault: Fault, outcomes: dict[int, list[Outcome]]) -> str:
    """A row of the table."""
    every = [outcome for each in outcomes.values() for outcome in each]
    codes = "/".join(map(str, sorted({outcome.code for outcome in every})))
    times = [f"{statistics.median(each.seconds for each in found):.1f}" for found in outcomes.values()]
    if fault.goes_on:
        times = ["goes on"] * len(times)
    elif fault.from_start:
        times = [f"{each} from the start" for each in times]
    wrong = sorted({outcome.wrong for outcome in every} - {""})
    told = every[0].seen + "".join(f" **{each}**" for each in wrong)
    return f"| {fault.name} | {told} | {codes} | {' | '.join(times)} |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", default="2,3", help="numbers of ranks (default: 2,3)")
    parser.add_argument("--repeats", type=int, default=3, help="how often each fault is played (default: 3)")
    parser.add_argument("--only", default="", metavar="TEXT", help="faults with this in their name")
    options = parser.parse_args()
    ranks = [int(each) for each in options.ranks.split(",")]
    is_right = True
    print(f"| fault | what the user sees first | exit code | {' | '.join(f'{each} ranks, s' for each in ranks)} |")
    print("|---" * (3 + len(ranks)) + "|", flush=True)
    with tempfile.TemporaryDirectory(prefix="fault_matrix-") as top:
        top_folder = Path(top).resolve()
        disk = preloadable("disk.c", top_folder)
        for number, fault in enumerate(FAULTS):
            if options.only not in fault.name:
                continue
            outcomes: dict[int, list[Outcome]] = {num_ranks: [] for num_ranks in ranks}
            for repeat in range(options.repeats):
                for num_ranks in ranks:
                    folder = top_folder / f"{number}-{repeat}-{num_ranks}"
                    folder.mkdir()
                    outcomes[num_ranks].append(play(fault, num_ranks, folder, disk))
            is_right &= not any(outcome.wrong for each in outcomes.values() for outcome in each)
            print(row(fault, outcomes), flush=True)
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())
