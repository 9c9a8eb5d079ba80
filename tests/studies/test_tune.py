"""`tune` tries each way to run an env, leaves out what is far slower, tries the rest again, and names the command."""

import json
import os
import shlex
import signal
import sys
from dataclasses import replace

import pytest
from jobs import HELPERS, Job, Result, are_gone
from made_up_studies import FACTS, ORIGIN

from mpi_rollout.cli import main
from mpi_rollout.config import RolloutConfig
from mpi_rollout.core.partition import Division
from mpi_rollout.studies import tune as tuning
from mpi_rollout.studies.study import Point, Sample, Study
from mpi_rollout.studies.study_file import StudyFile
from mpi_rollout.studies.tune import candidates, choose, command, limit_of, lines, rate_points

LAUNCHER = shlex.join([sys.executable, str(HELPERS / "fake_tune_launcher.py")])
ENV = ("--env-factory", "tuned_envs:Plain", "--num-envs", "6")
FAST = {"-n 2": 1800.0, "-n 2 --num-groups 2": 1700.0, "-n 2 --batch-size 1": 1600.0,
        "-n 3 --root-envs 0 --num-groups 2": 1500.0, "-n 3 --root-envs 0 --batch-size 1": 1400.0}  # fmt: skip
SLOW = {"-n 1", *(f"-n 2 --fragment-length {length}" for length in (1, 16, 64))}


def tune(job: Job, *arguments: str, rates: dict[str, float] = FAST, **trouble: str) -> Result:
    """With a launcher that starts nothing."""
    some = ("--launcher", LAUNCHER, "--ranks", "1,2", "--repeats", "2", "--trial-s", "0.3")
    return job(None, "tune", *some, *(arguments or ENV), RATES=json.dumps(rates), **trouble)


def rows(result: Result) -> dict[str, int]:
    """The ways in the table, in its order, and how many jobs they had."""
    text = result.out.splitlines()
    start = next(place for place, line in enumerate(text) if line.endswith("of the limit"))
    end = next(place for place, line in enumerate(text) if line.startswith(("medians", "too few")))
    cells = [line.strip().split("  ") for line in text[start + 1 : end]]
    return {way: int(next(filter(None, more))) for way, *more in cells}


@pytest.mark.parametrize("num_envs", [1, 2, 3, 5, 8, 64])
def test_every_way_is_a_run_that_can_be_started(num_envs: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tuning, "num_usable_cores", lambda: 4)
    ranks = tuning._usual_ranks(num_envs)
    assert ranks == tuple(each for each in (1, 2, 4) if each <= num_envs)
    points = candidates(ranks, num_envs, True)
    assert len(points) == len(set(points)) and Point(ranks[-1]) in points
    for point in points:
        config = RolloutConfig(env="CartPole-v1", num_envs=num_envs, **dict(point.options))
        division = Division(
            num_envs, point.num_ranks, config.root_envs, config.num_groups, config.batch_size is not None
        )
        assert (config.batch_size or 1) <= len(division.stepping_ranks)


def test_random_actions_have_fragments_to_try_and_others_have_not():
    ways = {each.way for each in candidates((1, 2), 64, True)}
    assert ways - {each.way for each in candidates((1, 2), 64, False)} == SLOW - {"-n 1"}
    assert "-n 5 --root-envs 0 --batch-size 2" in {each.way for each in candidates((1, 2, 4), 64, False)}


ONE, TWO, GROUPS = Point(1), Point(2), Point(2, (("num_groups", 2),))


def samples(rates: dict[Point, list[float]], limit: float = 20.0) -> tuple[Sample, ...]:
    return tuple(
        Sample(replace(point, repeat=repeat), 6, "", env_steps=6, num_steps=1, seconds=6 / rate, limit=((rate, limit),))
        for point, each in rates.items()
        for repeat, rate in enumerate(each)
    )


@pytest.mark.parametrize(
    ("rates", "ties", "chosen"),
    [
        ({GROUPS: [100, 110, 120], TWO: [98, 105, 111], ONE: [50, 51, 52]}, [GROUPS, TWO], TWO),
        ({GROUPS: [100, 110, 120], TWO: [80, 85, 90]}, [GROUPS], GROUPS),
        # Slower than one that is surely slower than the fastest, however wide its interval.
        ({ONE: [70, 80, 85, 86, 101], TWO: [97, 98, 98, 99, 99], GROUPS: [100, 103, 105, 107, 110]}, [GROUPS], GROUPS),
    ],
)
def test_of_ways_that_tie_the_simplest_is_chosen(rates, ties, chosen):
    ratings = rate_points(samples(rates))
    assert [each.point for each in ratings if each.is_tie] == ties and choose(ratings).point == chosen


def test_a_way_with_a_failed_job_is_not_rated():
    failed = Sample(replace(GROUPS, repeat=3), 6, "", "exit code 70")
    assert [each.point for each in rate_points([*samples({GROUPS: [100, 110], TWO: [80, 85]}), failed])] == [TWO]


def test_the_limit_is_that_of_all_ranks():
    found = [*samples({TWO: [1.0]}), *samples({ONE: [1.0]}, 5.0)]
    assert (limit_of(found, 2), limit_of(found[1:], 2)) == (20.0, 0)


def study_file(rates: dict[Point, list[float]], launcher: str = "", **run: object) -> StudyFile:
    options = {"env": "Acrobot-v1", "env_factory": None, "env_kwargs": {}, "num_steps": 7, "limit_s": 0.1, **run}
    study = Study("tune", tuple(rates), 6, options)
    return StudyFile(replace(study, jobs=replace(study.jobs, launcher=launcher)), FACTS, ORIGIN, samples(rates))


def test_a_single_job_of_each_is_said_to_be_too_few():
    told = lines(study_file({TWO: [98], ONE: [50]}), 2)
    assert "too few jobs to know how much they differ; give more --repeats" in told


def test_a_command_can_be_given_to_a_shell():
    file = study_file({TWO: [1.0]}, "srun --mpi=pmix", env_kwargs={"level": "a=b"})
    point = Point(3, (("root_envs", 0), ("num_groups", 2)))
    assert shlex.split(command(file.study, point)) == [
        "srun", "--mpi=pmix", "-n", "3", "python", "-m", "mpi_rollout", "--env", "Acrobot-v1",
        "--env-kwargs", '{"level": "a=b"}', "--num-envs", "6", "--root-envs", "0", "--num-groups", "2",
    ]  # fmt: skip


def test_all_ways_are_tried_and_the_simplest_of_the_fastest_named(job: Job):
    log = job.folder / "log"
    result = tune(job, LOG=str(log))
    assert result.code == 0, result.err
    found = rows(result)
    assert list(found)[: len(FAST)] == list(FAST) and {*found} == {*FAST} | SLOW
    assert {way for way, num_jobs in found.items() if num_jobs == 2} == {*FAST}
    assert log.read_text().splitlines()[:2] == ["-n 2 --num-steps 20", "-n 2 --num-steps 90"]  # 0.3 s at that rate.
    use = next(line for line in result.out.splitlines() if line.startswith("use: "))
    assert use == f"use: {LAUNCHER} -n 2 python -m mpi_rollout --env-factory tuned_envs:Plain --num-envs 6"
    more, fragments = result.out.splitlines()[-2:]
    assert more == "more envs: --num-envs 24 does not help, 0.56 times the env steps/s"  # That of the others.
    assert fragments == "fragments: --fragment-length auto instead of 1 helps, 1.80 times the env steps/s"
    first = next(line.split() for line in result.out.splitlines() if line.strip().startswith("-n 2 "))
    assert first[-1] == "0.090" and list(job.folder.iterdir()) == [log]  # Of the limit.


def test_ways_that_a_lucky_first_job_put_aside_have_more_jobs_when_that_is_known(job: Job):
    log, lucky = job.folder / "log", "-n 2 --num-groups 2"
    log.touch()
    result = tune(job, LOG=str(log), LUCKY=lucky)
    assert result.code == 0, result.err
    assert {way for way, jobs in rows(result).items() if jobs == 2} == {lucky, "-n 2", "-n 2 --batch-size 1"}


def test_more_envs_that_help_are_named_and_so_is_a_policy_without_fragments(job: Job):
    log = job.folder / "log"
    rates = FAST | {"-n 2 --num-envs 24": 4500.0}
    result = tune(job, *ENV, "--policy", "policies:leaning", rates=rates, LOG=str(log))
    assert result.code == 0, result.err
    more, fragments = result.out.splitlines()[-2:]
    assert more == "more envs: --num-envs 24 helps, 2.50 times the env steps/s"
    assert fragments.startswith("fragments: need a policy that the ranks run") and {*rows(result)} == {*FAST, "-n 1"}
    assert "-n 2 --num-envs 24 --num-steps 22" in log.read_text().splitlines()  # As many env steps as with 90 steps.


def test_envs_of_which_each_has_its_kwargs_cannot_be_more(job: Job):
    kwargs = ("--env-kwargs", json.dumps([{}] * 6))
    result = tune(job, *ENV, *kwargs, "--dry-run")
    assert result.code == 0 and len(result.out.splitlines()) == len({*FAST} | SLOW), result.err


def test_ways_that_fail_or_hang_are_told_once_and_the_others_are_tried(job: Job):
    result = tune(job, *ENV, "--timeout-s", "6", FAIL="-n 2 --batch-size 1", HANG="-n 1")
    assert result.code == 70
    assert result.messages[-1] == "2 of 15 jobs failed; the others are in the table"
    assert (
        "failed: -n 2 --batch-size 1, repeat 0: exit code 70: rank 1 (node7): the env has lost its licence"
        in result.out
    )
    assert "failed: -n 1, repeat 0: did not end within 6 s" in result.out
    assert {*rows(result)} == ({*FAST} | SLOW) - {"-n 1", "-n 2 --batch-size 1"} and are_gone(job.folder)


def test_an_env_that_fails_is_told_by_the_first_job(job: Job):
    result = tune(job, FAIL="-n 2")
    assert (result.code, result.out) == (70, "")
    assert result.messages[-2].endswith("failed: exit code 70: rank 1 (node7): the env has lost its licence")
    assert result.messages[-1].startswith("the first job failed, -n 2 without more options; try tuned_envs:Plain")


def test_what_was_found_before_it_is_stopped_is_told(job: Job):
    arguments = ("tune", "--launcher", LAUNCHER, "--ranks", "1,2", "--trial-s", "0.3", "--order-seed", "3", *ENV)
    log = job.folder / "log"
    running = job.start(None, *arguments, HANG="-n 1", LOG=str(log), RATES=json.dumps(FAST))
    running.wait_until(lambda: log.exists() and "-n 1 --num-steps" in log.read_text())
    os.kill(running.pid, signal.SIGINT)
    result = running.finish()
    starts = log.read_text().splitlines()
    num_tried = len(starts) - 3  # Two calibrate, and one hangs.
    assert result.code == 75 and result.messages[-1].endswith(f"; {num_tried} of 10 jobs are done")
    num_with_more = sum("--num-envs" in start for start in starts)  # These have no row.
    assert len(rows(result)) == num_tried - num_with_more > 0 and list(job.folder.iterdir()) == [log]
    assert are_gone(job.folder)


def test_a_dry_run_prints_the_jobs_and_starts_none(job: Job):
    policy = ("--policy", "mine:make_net", "--policy-kwargs", '{"gain": 2}')
    result = tune(job, *ENV, "--actions", "pass", "--no-episode-seeds", *policy, "--dry-run")
    assert result.code == 0, result.err
    commands = [shlex.split(line) for line in result.out.splitlines()]
    passed_on = {
        "--env-factory=tuned_envs:Plain",
        "--actions=pass",
        "--no-episode-seeds",
        '--policy-kwargs={"gain": 2}',
    }
    assert len(commands) == len({*FAST} | SLOW) + 1 and all(passed_on <= {*command} for command in commands)
    assert list(job.folder.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ((), 64, "give one of --env ID and --env-factory MODULE:CALLABLE, got none"),
        ((*ENV, "--trial-s", "nan"), 64, "--trial-s must be more than 0 s and at most 1e+06, got nan"),
        ((*ENV, "--ranks", "1,8"), 64, "--num-envs must be at least the largest of --ranks, got 6 envs for 8 ranks"),
        ((*ENV, "--ranks", str(2**64)), 64, "--ranks must be numbers of ranks up to 2147483647, got 1844674407370955"),
        ((*ENV, "--launcher", "no-such-mpirun"), 78, "there is no program no-such-mpirun"),
    ],
)  # fmt: skip
def test_bad_options_are_refused_in_one_line(tmp_path, monkeypatch, capsys, arguments, code, words):
    monkeypatch.chdir(tmp_path)
    assert main(["tune", *arguments]) == code
    [message] = capsys.readouterr().err.splitlines()
    assert words in message and list(tmp_path.iterdir()) == []


@pytest.mark.any_mpi
@pytest.mark.mpi
def test_a_real_env_is_tuned_by_real_jobs(job: Job):
    arguments = ("--ranks", "1", "--repeats", "1", "--trial-s", "0.2", "--num-envs", "4")
    result = job(None, "tune", "--env", "Acrobot-v1", *arguments)
    assert result.code == 0, result.err
    assert "use: mpirun -n 1 python -m mpi_rollout --env Acrobot-v1 --num-envs 4" in result.out
    assert list(job.folder.iterdir()) == []
