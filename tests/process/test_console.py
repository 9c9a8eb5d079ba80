"""What the program says never fails and never waits for ever: the run does not depend on who listens."""

import json
import os
import subprocess
import sys

import pytest
from jobs import TIMEOUT_S, Job, Start, job_environment, run_job

from mpi_rollout.process.console import STDERR, STDOUT, fitted, hold, stdout_apart, take_free_descriptors, write

pytestmark = [pytest.mark.any_mpi, pytest.mark.full_start]

RUN = ("--num-envs", "4", "--num-steps", "20", "--progress", "none", "--out", "run.h5")
BREAKS = ("close", "replace", "descriptors", "forget")


def breaking(how: str, **more: bool) -> tuple[str, ...]:
    kwargs = json.dumps({"how": how, **more})  # A look at the env before the run would have its fifth step.
    return "--env-factory", "unruly_envs:Breaking", "--env-kwargs", kwargs, "--no-seed-check", *RUN


def state(job: Job) -> tuple[str, int]:
    found = json.loads((job.folder / "run.status.json").read_text())
    return found["state"], found["exit_code"]


def test_a_run_whose_env_breaks_stdout_and_stderr_is_complete_and_says_so(job: Job):
    starts = []
    for number, (how, is_late) in enumerate([(how, is_late) for how in BREAKS for is_late in (False, True)]):
        folder = job.folder / str(number)
        folder.mkdir()
        starts.append(Start(breaking(how, is_late=is_late), folder))
    for start, result in zip(starts, job.series(starts), strict=True):
        assert (result.code, result.err) == (0, "")
        whole = start.folder / "run.h5"
        assert result.out.endswith(f"file: {whole} (complete)\n") and whole.exists()


@pytest.mark.mpi(2)
def test_a_run_that_fails_says_why_also_where_its_env_broke_stdout(job: Job, num_ranks: int):
    result = job(num_ranks, *breaking("descriptors", fails=True))
    assert result.code == 70 and len(result.messages) == 1
    part = job.folder / "run.h5.part"
    assert result.messages[0].endswith(f"the simulator has diverged; the 6 steps before are in {part}")
    assert state(job) == ("failed", 70)


@pytest.mark.parametrize("where", ["> /dev/full", "2> /dev/full --progress bar", ">&- 2>&-"])
def test_a_run_that_cannot_say_anything_is_complete(job: Job, where: str):
    command = " ".join(job.command(None, "--env", "CartPole-v1", *RUN))
    result = run_job(["bash", "-c", f"{command} {where}"], job.folder)
    assert result.code == 0 and result.err == ""
    assert state(job) == ("complete", 0) and (job.folder / "run.h5").exists()


def test_a_file_name_that_stdout_has_no_characters_for_is_told_with_escapes(job: Job):
    ascii_only = {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    result = job(None, "--env", "CartPole-v1", *RUN[:-1], "n\u00e4he.h5", **ascii_only)
    assert result.code == 0 and result.err == "" and "n\\xe4he.h5 (complete)" in result.out
    result = job(None, "inspect", "n\u00e4he.h5", **ascii_only)
    assert result.code == 0 and result.out.startswith("n\\xe4he.h5: CartPole-v1")


def test_a_command_whose_words_nobody_can_get_fails(job: Job):
    job.collect(None, "--env", "CartPole-v1", *RUN[:-2])
    command = " ".join(job.command(None, "inspect", "run.h5"))
    result = run_job(["bash", "-c", f"{command} > /dev/full"], job.folder)
    assert (result.code, result.err) == (74, "mpi_rollout: cannot write to stdout: No space left on device\n")


def test_nobody_is_waited_for_who_does_not_read():
    code = "from mpi_rollout.process.console import *; say('x' * 10**6, STDOUT, 0.2); print('went on', file=sys.stderr)"
    process = subprocess.Popen(
        [sys.executable, "-c", code], env=job_environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stderr.read() == b"went on\n"
    process.communicate()


def test_text_comes_whole_and_in_order(capfd):
    print("before")
    write("".join(f"{number}\n" for number in range(1000)), STDOUT)
    write("file \udcff\n", STDERR)
    out, err = capfd.readouterr()
    assert out == "before\n" + "".join(f"{number}\n" for number in range(1000)) and err == "file \\udcff\n"


def test_no_file_gets_the_number_of_a_closed_stdout():
    code = "import os; from mpi_rollout.process.console import *; os.close(1); take_free_descriptors(); "
    code += "sys.exit(os.open('/dev/null', os.O_RDONLY))"
    assert subprocess.run([sys.executable, "-c", code], env=job_environment()).returncode > 2
    before = [os.fstat(number) for number in (0, 1, 2)]
    take_free_descriptors()
    assert [os.fstat(number) for number in (0, 1, 2)] == before


@pytest.mark.mpi(2)
def test_with_json_stdout_is_the_json_alone_also_where_envs_and_policies_print(job: Job, num_ranks: int):
    chatty = ("--env-factory", "chatty_envs:Chatty", "--policy", "chatty_envs:act", *RUN, "--json")
    result = job(num_ranks, *chatty)
    assert result.code == 0, result.err
    assert result.out.count("\n") == 1 and json.loads(result.out)["complete"]
    said = {"imported", "made", "asked", "stepped", "stepped in C", "closed", "gone", "at exit"}
    assert said <= {*result.err.splitlines()}
    verify = ("verify", "run.h5", "--replay", "2", "--env-factory", "chatty_envs:Chatty", "--json")
    result = job(None, *verify)
    assert result.code == 0 and result.out.count("\n") == 1 and json.loads(result.out)
    assert "stepped in C" in result.err


def test_stdout_is_given_back(capfd):
    hold()
    with stdout_apart():
        print("an env")
        os.system("echo a program")
        write("ours\n", STDOUT)
    print("after")
    out, err = capfd.readouterr()
    assert (out, err) == ("ours\nafter\n", "an env\na program\n")


def test_a_stdout_that_is_no_file_is_kept_apart_too(capsys):
    hold()
    with stdout_apart():
        print("an env")
        write("ours\n", STDOUT)
    print("after")
    assert capsys.readouterr() == ("ours\nafter\n", "an env\n")
    hold()


@pytest.mark.mpi(2)
@pytest.mark.parametrize("launched", [True, False], ids=["mpiexec", "alone"])
def test_an_env_that_asks_for_input_fails_and_does_not_wait_for_it(job: Job, num_ranks: int, launched: bool):
    """Nobody answers: what would be read is open, and nothing comes."""
    command = job.command(num_ranks if launched else None, "--env-factory", "chatty_envs:Asking", *RUN)
    reader, writer = os.pipe()
    process = subprocess.Popen(
        command, cwd=job.folder, env=job_environment(), stdin=reader, stderr=subprocess.PIPE, stdout=subprocess.PIPE,
        text=True, start_new_session=True,
    )  # fmt: skip
    try:
        _, err = process.communicate(timeout=TIMEOUT_S)
    finally:
        os.close(reader)
        os.close(writer)
    assert process.returncode == 70
    [message] = [line for line in err.splitlines() if line.startswith("mpi_rollout: ")]
    assert "step 2: env " in message
    assert "EOFError: EOF when reading a line (it asked for input, and stdin is empty)" in message


TRAINER = """
import sys
import mpi_rollout
from chatty_envs import Asking, Counting
with mpi_rollout.connect(Counting, 4) as envs:
    if envs is not None:
        print("told", sys.stdin.readline().strip())
if envs is None:
    print("other rank", repr(sys.stdin.read()))
else:
    print("told", input())
"""


@pytest.mark.mpi(2)
def test_a_trainer_keeps_its_stdin(job: Job, num_ranks: int):
    (job.folder / "program.py").write_text(TRAINER)
    command = [*job.command(num_ranks)[:-3], sys.executable, "program.py"]
    given = {"env": job_environment(), "input": "first\nsecond\n", "capture_output": True, "text": True}
    result = subprocess.run(command, cwd=job.folder, timeout=TIMEOUT_S, **given)
    assert result.returncode == 0, result.stderr
    assert {"told first", "told second", "other rank ''"} <= {*result.stdout.splitlines()}


def test_lines_are_broken_between_words_in_a_narrow_terminal_only(monkeypatch: pytest.MonkeyPatch):
    lines = ["short", "versions      " + "python 3.11, " * 12, "  path        " + "x" * 100]
    monkeypatch.setattr(os, "get_terminal_size", lambda descriptor: os.terminal_size((40, 24)))
    broken = fitted(lines)
    assert broken[0] == "short" and broken[-1].endswith("x" * 100) and all(len(line) <= 40 for line in broken[:-1])
    assert broken[2].startswith(" " * 14 + "p") and fitted(lines, 4)[2].startswith(" " * 4 + "p")
    assert " ".join(broken).split() == " ".join(lines).split()

    def refuse(descriptor: int) -> os.terminal_size:
        raise OSError("it is a pipe")

    monkeypatch.setattr(os, "get_terminal_size", refuse)
    assert fitted(lines) == lines
