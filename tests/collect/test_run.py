"""`run --dry-run`: what a run would be refused for, told by one process that starts no MPI and leaves nothing."""

import pytest
from jobs import Job
from refusals import refused
from stopped_runs import OUT

pytestmark = pytest.mark.any_mpi

RUN = ("run", "--dry-run", "--env-factory", "envs:Counting", "--num-envs", "4", "--num-steps", "3")


def test_what_can_run_is_ready_and_nothing_is_left_behind(job: Job):
    result = job(None, *RUN, *OUT, "--expect-ranks", "4")
    assert (result.code, result.out, result.err) == (0, "ready: 4 envs on 4 ranks, --out run.h5\n", "")
    assert list(job.folder.iterdir()) == []
    one = job(None, *RUN, *OUT, "--num-envs", "1")
    assert (one.code, one.out) == (0, "ready: 1 env on 1 rank, --out run.h5\n")


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("--expect-ranks", "5"), 64, "got 4 envs on 5 ranks; use more envs or fewer ranks"),
        (("--policy", "policies:none"), 64, "--policy policies:none: "),
        (("--env-factory", "envs:none"), 64, "--env-factory envs:none: "),
        (("--out", "none/run.h5"), 74, "there is no folder "),
        (("--seed", "one"), 64, "--seed"),
    ],
)
def test_what_a_run_would_refuse_is_refused_with_its_code(job: Job, arguments: tuple[str, ...], code: int, words: str):
    assert words in refused(job, *RUN, *OUT, *arguments, code=code)


def test_an_env_that_cannot_be_made_has_its_stack_and_the_code_of_envs(job: Job):
    (job.folder / "mine.py").write_text("def make():\n    return 1 / 0\n")
    result = job(None, *RUN, *OUT, "--env-factory", "mine:make")
    assert result.code == 70 and "ZeroDivisionError" in result.messages[0] and result.num_tracebacks == 1


def test_an_output_of_another_run_is_refused_and_a_complete_one_is_not_made_again(job: Job):
    job.collect(None, *RUN[2:])
    assert "is of another run: --seed was 0, is 1" in refused(job, *RUN, *OUT, "--seed", "1")
    result = job(None, *RUN, *OUT)
    assert (result.code, result.out) == (0, "") and "nothing is left to do" in result.messages[0]
    (job.folder / "run.h5").rename(job.folder / "run.h5.part")
    assert "is of another run: --seed was 0, is 1" in refused(job, *RUN, *OUT, "--seed", "1")


def test_it_loads_no_mpi(job: Job):
    result = job.script(
        None,
        "import sys\nfrom mpi_rollout.cli import main\n"
        f"assert main({[*RUN, *OUT]!r}) == 0\nassert not any(name.startswith('mpi4py') for name in sys.modules)",
    )
    assert result.code == 0, result.err
