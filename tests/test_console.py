"""What the program says never fails and never waits for ever: the run does not depend on who listens."""

import json
import os
import subprocess
import sys

import pytest
from conftest import Job, Start, job_environment, run_job

from mpi_rollout.console import STDERR, STDOUT, take_free_descriptors, write

pytestmark = pytest.mark.any_mpi

RUN = ("--num-envs", "4", "--num-steps", "20", "--progress", "none", "--out", "run.h5")
BREAKS = ("close", "replace", "descriptors", "forget")


def breaking(how: str, **more: bool) -> tuple[str, ...]:
    return "--env-factory", "unruly:Breaking", "--env-kwargs", json.dumps({"how": how, **more}), *RUN


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
        assert result.out.endswith("file: run.h5 (complete)\n") and (start.folder / "run.h5").exists()


@pytest.mark.mpi(2)
@pytest.mark.parametrize("how", ["close", "descriptors"])
def test_a_run_that_fails_says_why_also_where_its_env_broke_stdout(job: Job, num_ranks: int, how: str):
    result = job(num_ranks, *breaking(how, fails=True))
    assert result.code == 70 and len(result.messages) == 1
    assert result.messages[0].endswith("the simulator has diverged; the 6 steps before are in run.h5.part")
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
    assert result.code == 0 and result.err == "" and "file: n\\xe4he.h5 (complete)" in result.out
    result = job(None, "inspect", "n\u00e4he.h5", **ascii_only)
    assert result.code == 0 and result.out.startswith("n\\xe4he.h5: CartPole-v1")


def test_a_command_whose_words_nobody_can_get_fails(job: Job):
    job.collect(None, "--env", "CartPole-v1", *RUN[:-2])
    command = " ".join(job.command(None, "inspect", "run.h5"))
    result = run_job(["bash", "-c", f"{command} > /dev/full"], job.folder)
    assert (result.code, result.err) == (74, "mpi_rollout: cannot write to stdout: No space left on device\n")


def test_nobody_is_waited_for_who_does_not_read():
    code = "from mpi_rollout.console import *; say('x' * 10**6, STDOUT, 0.2); print('went on', file=sys.stderr)"
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
    code = "import os; from mpi_rollout.console import *; os.close(1); take_free_descriptors(); "
    code += "sys.exit(os.open('/dev/null', os.O_RDONLY))"
    assert subprocess.run([sys.executable, "-c", code], env=job_environment()).returncode > 2
    before = [os.fstat(number) for number in (0, 1, 2)]
    take_free_descriptors()
    assert [os.fstat(number) for number in (0, 1, 2)] == before
