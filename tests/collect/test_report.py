"""What a run says while it goes and when it is over, and what it writes about its own speed."""

import errno
import json
import os
import pty
import re
import signal
import struct
import subprocess
import termios
import threading
from collections.abc import Callable
from dataclasses import fields
from fcntl import ioctl
from pathlib import Path

import h5py
import numpy as np
import pytest
from jobs import TIMEOUT_S, Job, Result, Start, job_environment, once

from mpi_rollout.collect.report import RunFigures
from mpi_rollout.process.clock import PHASES

QUIET = "--no-seed-check"  # These envs count their episodes: a look at them would have a line of its own.
SHORT = ("--env-factory", "envs:Counting", QUIET, "--num-envs", "6", "--num-steps", "200")
PACED = ("--env-factory", "failing_envs:paced", "--env-kwargs", '{"sleep_s": 0.001}', QUIET)
LONG = (*PACED, "--num-envs", "6", "--num-steps")
OUT = ("--out", "run.h5")
LINE = re.compile(
    r"mpi_rollout: ([\d,]+) of ([\d,]+) steps \((\d+)%\), ([\d,]+) env steps, ([\d,]+) env steps/s, "
    r"envs \d+%, imbalance \d+%, exchange \d+%, policy \d+%, write \d+%"
)
TERMINAL_COLUMNS = 80


def number(text: str) -> int:
    return int(text.replace(",", ""))


def on_a_terminal(job: Job, num_ranks: int | None, *arguments: str) -> tuple[int, str, str]:
    """Run with a terminal as stderr, which is watched: the file `seen` says that a bar was; see `unruly.Watched`.

    Returns
    -------
    Exit code, stdout and what the terminal got.
    """
    ours, theirs = pty.openpty()
    ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 30, TERMINAL_COLUMNS, 0, 0))
    with subprocess.Popen(
        job.command(num_ranks, *arguments), cwd=job.folder, env=job_environment(TERM="xterm"), text=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=theirs, start_new_session=True,
    ) as process:  # fmt: skip
        os.close(theirs)
        too_late = threading.Timer(TIMEOUT_S, os.killpg, (process.pid, signal.SIGKILL))
        too_late.start()
        seen = b""
        while chunk := _read(ours):
            seen += chunk
            if b"%|" in seen:
                (job.folder / "seen").touch()
        too_late.cancel()
        os.close(ours)
        out = process.stdout.read()
    return process.returncode, out, seen.decode()


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 4096)
    except OSError as error:  # Its last user has gone.
        if error.errno != errno.EIO:
            raise
        return b""


def screen(text: str) -> list[str]:
    """The lines that a terminal shows in the end that got a text; the last one is where the cursor is."""
    lines, column = [""], 0
    for piece in re.split(r"(\r|\n|\x1b\[K)", text):
        if piece == "\r":
            column = 0
        elif piece == "\n":
            lines.append("")
        elif piece == "\x1b[K":
            lines[-1] = lines[-1][:column]
        else:
            lines[-1] = lines[-1][:column].ljust(column) + piece + lines[-1][column + len(piece) :]
            column += len(piece)
    return [line.rstrip() for line in lines]


def summary_of(result: Result) -> dict:
    """The JSON that a run prints, which is all that it prints."""
    assert result.code == 0, result.err
    assert result.out.count("\n") == 1 and result.out.endswith("\n")
    return json.loads(result.out)


Short = Callable[..., tuple[dict, Path]]


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> Short:
    """What a short run on some ranks prints as JSON, and its file."""

    @once
    def of(num_ranks: int, *more: str) -> tuple[dict, Path]:
        job = Job(tmp_path_factory.mktemp("short"))
        found = summary_of(job(num_ranks, *SHORT, *OUT, "--json", "--progress", "none", *more))
        return found, job.folder / "run.h5"

    return of


@pytest.mark.any_mpi
@pytest.mark.mpi(2)
def test_a_log_gets_plain_lines_with_counts_and_shares(job, num_ranks):
    """With --progress lines too: see test_env_fault_runs."""
    result = job(num_ranks, *LONG, "500", *OUT)
    assert result.code == 0
    lines = [line for line in result.err.splitlines() if line]
    assert len(lines) == 1  # The second would come after 10 s.
    found = LINE.fullmatch(lines[0])
    assert found, lines[0]
    steps, total, percent, env_steps, rate = (number(text) for text in found.groups())
    assert 0 < steps <= total == 500 and percent == round(100 * steps / 500)
    assert 0 < env_steps <= 6 * steps and rate > 0
    assert "\r" not in result.err


def test_a_run_that_is_over_at_once_logs_no_progress(job):
    result = job(None, *SHORT, *OUT)
    assert (result.code, result.err) == (0, "")


def test_one_of_something_is_not_called_many(job):
    one = ("--env-factory", "envs:Counting", QUIET, "--num-envs", "1", "--num-steps", "1", "--progress", "none", *OUT)
    runs = job.series([Start(one), Start(("inspect", "run.h5")), Start(("verify", "run.h5"))])
    said = "".join(run.out for run in runs)
    assert "1 env step in" in said and "(1 env x 1 step on 1 rank)" in said and "in 1 episode" in said
    assert not re.search(r"\b1 (ranks|envs|steps|episodes|env steps|times)\b", said)


def test_without_progress_there_is_nothing_but_the_summary(job):
    result = job(None, *LONG, "250", *OUT, "--progress", "none")
    assert (result.code, result.err) == (0, "")
    assert result.out.endswith(f"file: {job.folder / 'run.h5'} (complete)\n")


WATCHED = ("--env-factory", "unruly_envs:Watched", QUIET, "--num-envs", "6", "--num-steps", "3000", *OUT)


@pytest.mark.any_mpi
@pytest.mark.full_start
@pytest.mark.mpi(2)
@pytest.mark.parametrize("launched", [True, False], ids=["mpiexec", "alone"])
def test_a_terminal_gets_a_bar_while_the_run_goes_on_and_messages_take_its_place(job, num_ranks, launched):
    """The run waits for somebody to see the bar.  Launchers may hold back what is no whole line."""
    code, out, seen = on_a_terminal(job, num_ranks if launched else None, *WATCHED, "--max-env-restarts", "10")
    assert code == 0 and out.endswith(f"file: {job.folder / 'run.h5'} (complete)\n")
    bars = [line for line in re.split(r"[\r\n]+", seen) if "%|" in line]
    assert bars and max(map(len, bars)) < TERMINAL_COLUMNS and not LINE.search(seen)
    assert re.search(r"[\d,]+ env steps/s, .*[\d,]+/3,000 steps, envs", bars[-1])
    message, last = screen(seen)
    assert (
        re.fullmatch(r"mpi_rollout: rank [01] .*: the simulator stumbled .*; restarted, 1 of .*", message)
        and last == ""
    )


@pytest.mark.any_mpi
@pytest.mark.full_start
@pytest.mark.mpi(2)
def test_a_bar_is_gone_when_a_run_fails(job, num_ranks):
    code, _, seen = on_a_terminal(job, num_ranks, *WATCHED)
    assert code == 70 and "%|" in seen
    shown = screen(seen)
    assert "Traceback (most recent call last):" in shown
    assert any(line.startswith("mpi_rollout: rank 1") for line in shown) and not any("%|" in line for line in shown)


def test_a_bar_that_is_asked_for_comes_without_a_terminal_too(job):
    result = job(None, *LONG, "250", *OUT, "--progress", "bar")
    assert result.code == 0 and "%|" in result.err and "/250 steps" in result.err


@pytest.mark.any_mpi
@pytest.mark.mpi(2)
def test_the_summary_has_the_rate_the_losses_and_the_file(job, num_ranks):
    result = job(num_ranks, *SHORT, *OUT, "--progress", "none")
    first, time, fragments, slowest, *_, last = result.out.splitlines()
    with h5py.File(job.folder / "run.h5") as file:
        env_steps = int(file["episodes"]["length"].sum())
    assert re.fullmatch(
        rf"{env_steps:,} env steps in \d+\.\d\d s: [\d,]+ env steps/s \(6 envs x 200 steps on 2 ranks\)", first
    )
    shares = dict(re.findall(r"(\w+) (-?[\d.]+)%", time))
    assert list(shares) == ["envs", "imbalance", "exchange", "policy", "write"]
    assert sum(map(float, shares.values())) == pytest.approx(100, abs=0.3)
    assert re.fullmatch(r"fragments of \d+ steps at most; rank 0 sent the actions", fragments)
    assert re.match(rf"slowest rank: [01] \({os.uname().nodename}\), ", slowest)
    assert last == f"file: {job.folder / 'run.h5'} (complete)"


@pytest.mark.any_mpi
@pytest.mark.mpi(1, 3)
def test_the_json_summary_is_one_line_with_all_figures(short: Short, num_ranks):
    found, path = short(num_ranks)
    derived = {"env_steps_per_s", "losses", "ratio_to_limit", "advice"}
    assert set(found) >= {each.name for each in fields(RunFigures)} | derived
    assert (found["num_ranks"], found["num_envs"], found["num_steps"]) == (num_ranks, 6, 200)
    assert (found["file"], found["complete"], found["limit"], found["ratio_to_limit"]) == (str(path), True, [], None)
    assert found["env_steps_per_s"] == pytest.approx(found["env_steps"] / found["seconds"])
    assert [rank["rank"] for rank in found["ranks"]] == list(range(num_ranks)) and len(found["step_s"]) == num_ranks
    assert sum(rank["num_envs"] for rank in found["ranks"]) == 6


@pytest.mark.any_mpi
@pytest.mark.mpi(1, 3)
@pytest.mark.parametrize("more", [[], ["--no-trajectories"]], ids=["all", "throughput alone"])
def test_the_losses_are_shares_that_add_up_to_one(short: Short, num_ranks, more):
    found, _ = short(num_ranks, *more)
    assert_add_up(found["losses"])


SLOW_POLICY = """
import time


class Slow:
    def act(self, observations, env_indices, uniforms):
        time.sleep(0.01)  # Far longer than its envs take, also on a busy machine.
        return (observations[:, 2] > 0).astype(int)


make_slow = Slow
"""


@pytest.mark.any_mpi
@pytest.mark.mpi(2)
@pytest.mark.parametrize("more", [[], ["--root-envs", "0"], ["--batch-size", "1"]], ids=["all", "bare root", "ready"])
def test_a_slow_policy_on_the_ranks_is_not_taken_for_slow_envs(job, num_ranks, more):
    (job.folder / "slow.py").write_text(SLOW_POLICY)
    command = "--env", "CartPole-v1", "--num-envs", "6", "--num-steps", "50", "--policy", "slow:make_slow", *OUT
    found = summary_of(job(num_ranks, *command, *more, "--json"))
    losses, asked_s = found["losses"], [rank["seconds"]["policy"] for rank in found["ranks"] if rank["num_envs"]]
    assert sum(losses.values()) == pytest.approx(1) and found["advice"].count("policy") == 0
    assert all(0.5 <= seconds <= found["seconds"] for seconds in asked_s)
    assert losses["policy"] > losses["envs"]


PHASES_OF = """
from mpi_rollout.cli import main
from mpi_rollout.process.clock import Clock
phases, lap = [], Clock.lap
Clock.lap = lambda clock, phase: phases.append(phase) or lap(clock, phase)
assert main({command!r}) == 0
for before, after in zip(phases, phases[1:]):
    print(before, after)
"""


def test_the_wait_for_ranks_is_not_taken_for_that_for_the_disk(job):
    """Also in steps that fill a block: `exchange` is what is left, and was less than nothing."""
    command = ["--env-factory", "envs:Image", "--num-envs", "6", "--num-steps", "600", "--progress", "none", *OUT]
    result = job.script(None, PHASES_OF.format(command=command))
    pairs = result.out.splitlines()
    assert result.code == 0 and "gather write" in pairs and "step write" not in pairs


def assert_add_up(losses: dict[str, float]) -> None:
    assert sum(losses.values()) == pytest.approx(1)
    assert all(-0.01 < share < 1 for share in losses.values()) and losses["envs"] > 0


@pytest.mark.any_mpi
@pytest.mark.mpi(2)
def test_the_limit_is_measured_between_the_parts_of_a_run_and_told(job, num_ranks):
    """After each part and before the first."""
    command = [*SHORT, *OUT, "--measure-limit", "--json"]
    found = summary_of(job.script(num_ranks, f"import trainers\ntrainers.runs([{command!r}])\n"))
    assert len(found["limit"]) == 5 and all(rate > 0 and limit > 0 for rate, limit in found["limit"])
    ratios = [rate / limit for rate, limit in found["limit"]]
    assert found["ratio_to_limit"] == np.median(ratios)
    assert_add_up(found["losses"])  # They leave out the time that measuring takes.
    with h5py.File(job.folder / "run.h5") as file:
        assert file["throughput/limit"][...].tolist() == [tuple(pair) for pair in found["limit"]]
        assert (np.diff(file["throughput/intervals"]["time"]) > 0).all()
    lines = RunFigures(**{each.name: found[each.name] for each in fields(RunFigures)}).lines()
    [line] = [line for line in lines if line.startswith("limit: ")]
    median, low, high = np.median(ratios), min(ratios), max(ratios)
    assert line.endswith(f"parts of the run reached {median:.3f} of it (median of 5, {low:.3f} to {high:.3f})")


def test_the_summary_of_a_continued_run_says_that_it_is_of_its_last_start():
    outcome = RunFigures(
        "run.h5", num_envs=4, num_steps=1000, env_steps=2400, seconds=2.0, phases=dict.fromkeys(PHASES, 0.1),
        ranks=[{"rank": 0, "host": "node7", "num_envs": 4}], step_s=[1.0], slowest_s=1.0, mean_s=1.0,
        num_steps_before=400,
    )  # fmt: skip
    assert outcome.lines()[:2] == [
        "2,400 env steps in 2.00 s: 1,200 env steps/s (4 envs x 600 steps on 1 rank)",
        "this start only: earlier ones took 400 of the 1,000 steps",
    ]


def test_the_summary_names_the_ranks_that_make_each_env():
    ranks = [
        {"rank": 0, "num_envs": 0},
        {"rank": 1, "num_envs": 2, "env_ranks": [1, 2], "envs": "0 to 1"},
        {"rank": 3, "num_envs": 1, "env_ranks": [3, 4], "envs": "2 to 2"},
    ]
    outcome = RunFigures(
        "run.h5", num_envs=3, num_steps=1000, env_steps=3000, seconds=2.0, phases=dict.fromkeys(PHASES, 0.1),
        ranks=[rank | {"host": "node7"} for rank in ranks], step_s=[0.0, 0.5, 1.9], slowest_s=1.9, mean_s=1.2,
    )  # fmt: skip
    first, second, _, slowest, *_ = outcome.lines()
    assert first.endswith("(3 envs x 1,000 steps on 5 ranks)")
    assert second == "ranks 1, 2 made envs 0 to 1; ranks 3, 4 made env 2"
    assert slowest.startswith("slowest rank: 3 (node7)")


@pytest.mark.any_mpi
@pytest.mark.mpi(1, 3)
@pytest.mark.parametrize("more", [[], ["--no-trajectories"]], ids=["all", "throughput alone"])
def test_the_file_has_the_throughput_over_time_and_by_rank_and_phase(short: Short, num_ranks, more):
    found, path = short(num_ranks, *more)
    with h5py.File(path) as file:
        totals = dict(file["throughput"].attrs)
        intervals, ranks = file["throughput/intervals"][...], file["throughput/ranks"][...]
        assert ("trajectories" in file) == ("episodes" in file) == (not more)
    assert totals == {"starts": 1, "env_steps": found["env_steps"], "seconds": found["seconds"]}
    assert (np.diff(intervals["time"]) > 0).all() and (np.diff(intervals["env_steps"]) >= 0).all()
    assert intervals["env_steps"][-1] == found["env_steps"] and (intervals["env_steps_per_s"] >= 0).all()
    assert ranks["rank"].tolist() == list(range(num_ranks)) and ranks["num_envs"].sum() == 6
    assert set(ranks["host"]) == {os.uname().nodename.encode()}
    assert (ranks["step"] > 0).all() and all((ranks[name] >= 0).all() for name in PHASES)
    assert (ranks["wait"][1:] > 0).all()
    assert list(ranks["policy"] > 0) == [True] + [False] * (len(ranks) - 1)  # Rank 0 draws.


@pytest.mark.any_mpi
@pytest.mark.mpi(2)
def test_a_failed_run_says_so_in_json_too(job, num_ranks):
    failing = ("--env-factory", "failing_envs:failing", "--env-kwargs", '{"how": "raise", "rank": 1}')
    result = job(num_ranks, *failing, "--num-envs", "6", "--num-steps", "20", *OUT, "--json")
    assert result.code == 70
    [line] = result.out.splitlines()
    assert json.loads(line) == {"error": result.messages[0], "exit_code": 70}
