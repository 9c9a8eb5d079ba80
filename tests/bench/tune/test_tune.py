"""`tune` measures an env by itself, leaves out what cannot win, tries the rest, and names the command to use."""

import json
import os
import shlex
import signal
import sys
from dataclasses import replace

import numpy as np
import pytest
import tuned_envs
from jobs import CLONE, HELPERS, Job, Result, processes_in

from mpi_rollout.bench.env_probe import EnvFigures, measure_env, probe_env
from mpi_rollout.bench.jobs import JobRunner, Stop
from mpi_rollout.bench.tune.candidates import (
    Candidate,
    Costs,
    Trial,
    candidates,
    choose,
    limit_of,
    narrow,
    rate_candidates,
)
from mpi_rollout.bench.tune.report import Subject, command, memory_lines, size, trial_lines
from mpi_rollout.cli import main
from mpi_rollout.config import RolloutConfig
from mpi_rollout.core.partition import Division

LAUNCHER = shlex.join([sys.executable, str(HELPERS / "fake_tune_launcher.py")])
ENV = ("--env-factory", "tuned_envs:Plain", "--num-envs", "6")
ALL = {"-n 1": 900.0, "-n 2": 1800.0, "-n 2 --num-groups 2": 1700.0, "-n 2 --mode async": 1600.0,
       "-n 3 --dedicated-root --num-groups 2": 1500.0, "-n 3 --dedicated-root --mode async": 1400.0}  # fmt: skip
FRAGMENTS = {"-n 2 --fragment-length 1", "-n 2 --fragment-length 16", "-n 2 --inference workers"}
TOO_LONG = "-n 2 --fragment-length 64"  # As long as those of the made-up runs, which choose it by themselves.


def tune(job: Job, *arguments: str, rates: dict[str, float] = ALL, **trouble: str) -> Result:
    """With a launcher that starts nothing."""
    some = ("--launcher", LAUNCHER, "--ranks", "1,2", "--repeats", "2", "--trial-s", "0.1")
    variables = {"RATES": json.dumps(rates), "EXCHANGE_S": "0.01"} | trouble
    return job(None, "tune", *some, *(arguments or ENV), **variables)


def rows(result: Result) -> list[str]:
    """The options in the table, in its order."""
    lines = result.out.splitlines()
    start = next(place for place, line in enumerate(lines) if line.endswith("of the limit"))
    end = next(place for place, line in enumerate(lines) if line.startswith(("medians", "too few")))
    return [line.strip().partition("  ")[0] for line in lines[start + 1 : end]]


def costs(policy_s: float = 0.0, spread_s: float = 0.0, exchange_s: dict[int, float] | None = None) -> Costs:
    """Of 64 envs of a millisecond."""
    found = {1: 1e-5, 4: 5e-5} if exchange_s is None else exchange_s
    return Costs(64, 1e-3, spread_s, policy_s, found)


SELDOM = EnvFigures(  # A reset of 20 ms each 200 steps of 100 us: as much time as all the steps.
    step_s=1e-4, step_spread_s=0.0, num_steps=20_000, reset_s=0.02, reset_spread_s=0.0, steps_per_episode=200,
    observation_bytes=8, action_bytes=8, bytes_per_env=0.0, process_bytes=0, policy_s=0.0, is_native=False,
)  # fmt: skip


def names(found) -> set[str]:
    return {str(each) for each in found}


def test_where_nothing_is_lost_only_lockstep_on_all_cores_is_tried():
    kept, left_out = narrow(candidates((1, 2, 4), 64, False), costs())
    assert names(kept) == {"-n 4"}
    assert left_out[Candidate(1)] == "computed 0.25 of the rate of -n 4"
    assert left_out[Candidate(4, num_groups=2)] == "could win at most 0.2 % over -n 4"


def test_a_slow_policy_keeps_what_overlaps_it_with_steps_and_nothing_else():
    kept, _ = narrow(candidates((1, 2, 4), 64, False), costs(policy_s=8e-3))
    overlapping = {
        "-n 5 --dedicated-root --num-groups 2", "-n 5 --dedicated-root --mode async --batch-size 2",
        "-n 4 --dedicated-root --num-groups 2", "-n 4 --dedicated-root --mode async --batch-size 2",
    }  # fmt: skip
    assert names(kept) == {"-n 4", *overlapping}


def test_envs_of_unequal_times_keep_what_does_not_wait():
    kept, _ = narrow(candidates((1, 2, 4), 64, False), costs(spread_s=1e-3))
    assert {"-n 4 --num-groups 2", "-n 4 --mode async --batch-size 2"} <= names(kept)


def test_seldom_and_long_resets_keep_what_does_not_wait_for_them():
    found = Costs(64, SELDOM.env_s, SELDOM.env_spread_s, 0.0, {1: 1e-5, 4: 5e-5})
    kept, _ = narrow(candidates((1, 2, 4), 64, False), found)
    waiting = {"--num-groups 2", "--dedicated-root --num-groups 2", "--dedicated-root --mode async --batch-size 2"}
    assert {f"-n 4 {options}" for options in waiting} <= names(kept)


def test_the_spread_of_steps_and_resets_is_that_of_drawn_times():
    env = replace(SELDOM, step_spread_s=5e-5, reset_spread_s=0.01)
    draws = np.random.default_rng(1)
    drawn = draws.gamma(4, 1e-4 / 4, 200_000)
    drawn += (draws.random(drawn.size) < 1 / 200) * draws.gamma(4, 0.02 / 4, drawn.size)
    assert (env.env_s, env.env_spread_s) == (
        pytest.approx(drawn.mean(), rel=0.05),
        pytest.approx(drawn.std(), rel=0.05),
    )
    assert env.reset_share == pytest.approx(0.5)


def test_an_env_without_resets_has_the_time_and_spread_of_its_steps():
    env = replace(SELDOM, step_spread_s=5e-5, reset_s=0.0, steps_per_episode=0.0)
    assert (env.env_s, env.env_spread_s, env.reset_share) == (1e-4, pytest.approx(5e-5), 0.0)


def test_random_actions_have_fragments_to_try_and_others_have_not():
    ways = names(candidates((1, 2), 64, False, is_random=True)) - names(candidates((1, 2), 64, False))
    assert ways == {*(f"-n 2 --fragment-length {length}" for length in (1, 16, 64)), "-n 2 --inference workers"}


def test_fragments_that_make_up_for_slow_steps_leave_out_what_waits_for_each():
    uneven = replace(costs(spread_s=1e-3), fragment_length=16)
    assert uneven.lockstep_s(Candidate(4)) < 0.85 * uneven.lockstep_s(Candidate(4, fragment_length="1"))
    slow = replace(costs(), env_s=0.1, fragment_length=16)  # A step of 16 envs takes longer than a fragment may.
    assert slow.lockstep_s(Candidate(4)) == slow.lockstep_s(Candidate(4, fragment_length="1"))


def test_a_slow_exchange_keeps_fewer_ranks_and_still_all_of_them():
    kept, _ = narrow(candidates((1, 2, 4), 64, False), costs(exchange_s={1: 1e-5, 4: 0.2}))
    assert {"-n 1", "-n 4"} <= names(kept)


def test_without_an_exchange_measured_only_fewer_ranks_are_left_out():
    _, left_out = narrow(candidates((1, 2, 4), 64, False), costs(exchange_s={}))
    assert names(left_out) == {"-n 1", "-n 2"}


@pytest.mark.parametrize("num_envs", [1, 2, 3, 5, 8, 64])
def test_every_candidate_is_a_run_that_can_be_started(num_envs: int):
    found = candidates((1, 2, 4), 64, True)
    assert len(found) == len(set(found))
    ranks = tuple(each for each in (1, 2, 4) if each <= num_envs)
    for each in candidates(ranks, num_envs, True):
        config = RolloutConfig(env="CartPole-v1", num_envs=num_envs, **each.options)
        division = Division(num_envs, each.num_ranks, config.dedicated_root, config.num_groups, config.mode == "async")
        assert config.batch_size <= len(division.stepping_ranks)


def trials(**rates: list[float]) -> list[Trial]:
    options = {"one": Candidate(1), "two": Candidate(2), "groups": Candidate(2, num_groups=2)}
    return [Trial(options[name], repeat, rate) for name, each in rates.items() for repeat, rate in enumerate(each)]


def test_of_candidates_that_tie_the_simplest_is_chosen():
    found = rate_candidates(trials(groups=[100, 110, 120], two=[98, 105, 111], one=[50, 51, 52]))
    assert [(str(each.candidate), each.is_tie) for each in found] == [
        ("-n 2 --num-groups 2", True), ("-n 2", True), ("-n 1", False)
    ]  # fmt: skip
    assert choose(found).candidate == Candidate(2)


def test_what_is_slower_than_a_candidate_that_is_surely_slower_is_no_tie_however_wide_its_interval():
    found = rate_candidates(
        trials(one=[70, 80, 85, 86, 101], two=[97, 98, 98, 99, 99], groups=[100, 103, 105, 107, 110])
    )
    assert [(str(each.candidate), each.is_tie) for each in found] == [
        ("-n 2 --num-groups 2", True), ("-n 2", False), ("-n 1", False)
    ]  # fmt: skip
    assert choose(found).candidate == Candidate(2, num_groups=2)


def test_a_candidate_that_is_surely_faster_is_chosen_however_many_options_it_has():
    assert choose(rate_candidates(trials(groups=[100, 110, 120], two=[80, 85, 90]))).candidate == Candidate(
        2, num_groups=2
    )


def test_a_candidate_with_a_failed_job_is_not_chosen():
    failed = Trial(Candidate(2, num_groups=2), 3, error="exit code 70")
    found = rate_candidates([*trials(groups=[100, 110], two=[80, 85]), failed])
    assert [each.candidate for each in found] == [Candidate(2)]


def test_the_limit_is_that_of_the_same_way_of_stepping():
    native = Candidate(2, vectorization_mode="vector_entry_point")
    found = [Trial(Candidate(2), 0, 1.0, 20.0), Trial(native, 0, 1.0, 900.0), Trial(Candidate(1), 0, 1.0)]
    assert (limit_of(found, False).median, limit_of(found, True).median) == (20.0, 900.0)
    assert limit_of(found[2:], False) is None


def test_an_env_is_measured_as_it_is():
    found = measure_env(RolloutConfig(env_factory="tuned_envs:Plain", num_envs=6, policy="tuned_envs:count_calls"), 0.1)
    assert (found.observation_bytes, found.action_bytes, found.is_native) == (12, 8, False)
    assert found.steps_per_episode == pytest.approx(7, rel=0.1) and 0 < found.reset_share < 1
    assert found.step_s > 0 and found.policy_s > 0 and found.process_bytes > 10_000_000


def test_memory_of_an_env_is_measured_in_a_process_that_has_freed_none(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", f"{CLONE}:{HELPERS}")
    options = {"env_factory": "tuned_envs:Plain", "env_kwargs": {"heavy": True}, "num_envs": 6}
    found = probe_env(options, JobRunner(tmp_path, "", 60.0, Stop()), 0.1)
    assert found.bytes_per_env == pytest.approx(tuned_envs.HEAVY_BYTES, rel=0.1)


def test_a_sleeping_env_takes_as_long_as_it_sleeps_and_has_no_resets():
    kwargs = {"step_s": 0.002, "observation_bytes": 100}
    found = measure_env(RolloutConfig(env_factory="mpi_rollout.bench.sleeping:SleepingEnv", env_kwargs=kwargs), 0.1)
    assert found.step_s >= 0.002 and found.observation_bytes == 100
    assert (found.steps_per_episode, found.reset_share) == (0.0, 0.0)


@pytest.mark.filterwarnings("ignore:.*unversioned")
def test_an_env_with_a_vectorized_version_is_known():
    assert measure_env(RolloutConfig(env="CartPole-v1"), 0.1).is_native
    assert not measure_env(RolloutConfig(env="Acrobot-v1"), 0.1).is_native
    assert measure_env(RolloutConfig(env="CartPole"), 0.1).is_native  # Without a version the newest is meant.


def test_all_that_may_win_is_tried_and_the_simplest_of_the_fastest_named(job: Job):
    result = tune(job)
    assert result.code == 0, result.err
    for words in (
        "env step: ",
        "resets: ",
        "observations of 12 bytes, actions of 8",
        "memory: ",
        "12.0 us on 1 rank, 10,002.0 us on 2 ranks",
    ):
        assert words in result.out
    assert rows(result) == sorted(ALL, key=lambda name: -ALL[name])
    use = next(line for line in result.out.splitlines() if line.startswith("use: "))
    assert use == f"use: {LAUNCHER} -n 2 python -m mpi_rollout --env-factory tuned_envs:Plain --num-envs 6"
    assert "why: 1.06 times as fast as the next, -n 2 --num-groups 2" in result.out
    assert (
        "limit: 20,000 env steps/s, bare env.step loops on 2 ranks at once; this command reached 0.090 of it"
        in result.out
    )
    assert list(job.folder.iterdir()) == []


def test_what_is_left_out_is_told_with_the_reason_and_not_started(job: Job):
    env = ("--env-factory", "mpi_rollout.bench.sleeping:SleepingEnv", "--env-kwargs", '{"step_s": 0.01}')
    result = tune(job, *env, "--num-envs", "6", EXCHANGE_S="1e-6")
    assert result.code == 0, result.err
    assert "left out: -n 1: computed 0." in result.out and "-n 1" not in rows(result)
    assert set(rows(result)) >= FRAGMENTS
    assert f"left out: {TOO_LONG}: -n 2 has fragments of 64 steps at most" in result.out
    assert ": -n 1: " not in result.err and ": -n 2: 1,800 env steps/s" in result.err


def test_a_vectorized_version_is_named_with_what_it_means_for_the_data(job: Job):
    rates = ALL | {"-n 1 --vectorization-mode vector_entry_point": 9e5}
    result = tune(job, "--env", "CartPole-v1", "--num-envs", "6", rates=rates)
    assert result.code == 0, result.err
    assert rows(result)[0] == "-n 1 --vectorization-mode vector_entry_point"
    assert "its data depend on the number of ranks" in result.out
    plain = f"{LAUNCHER} -n 2 python -m mpi_rollout --env CartPole-v1 --num-envs 6"
    assert f"for the same data on any number of ranks: {plain}" in result.out.splitlines()


def test_candidates_that_fail_or_hang_are_told_once_and_the_others_are_tried(job: Job):
    result = tune(job, *ENV, "--timeout-s", "6", FAIL="-n 2", HANG="-n 1")
    assert result.code == 70
    assert result.messages[-1] == "2 of 10 jobs failed; the others are in the table"
    assert "failed: -n 2: exit code 70: rank 1 (node7): the env has lost its licence" in result.out
    assert "failed: -n 1: did not end within 6 s" in result.out
    assert sorted(rows(result)) == sorted(set(ALL) - {"-n 1", "-n 2"}) and processes_in(job.folder) == []
    assert "--num-groups 2" in next(line for line in result.out.splitlines() if line.startswith("use: "))


def test_what_was_found_before_it_is_stopped_is_told(job: Job):
    arguments = ("tune", "--launcher", LAUNCHER, "--ranks", "1,2", "--trial-s", "0.1", "--order-seed", "3", *ENV)
    log = job.folder / "log"
    trouble = {"HANG": "-n 1", "LOG": str(log), "RATES": json.dumps(ALL), "EXCHANGE_S": "0.01"}
    running = job.start(None, *arguments, **trouble)
    running.wait_until(lambda: log.exists() and "-n 1" in log.read_text().splitlines())
    os.kill(running.pid, signal.SIGINT)
    result = running.finish()
    num_tried = len([each for each in log.read_text().splitlines() if each not in ("idle", "-n 1")])
    assert result.code == 75 and f"; {num_tried} of 30 jobs were done" in result.messages[-1]
    assert len(rows(result)) == num_tried > 0 and list(job.folder.iterdir()) == [log]
    assert processes_in(job.folder) == []


def test_a_dry_run_prints_the_jobs_and_starts_none(job: Job):
    result = tune(job, *ENV, "--actions", "pass", "--strict-dtypes", "--dry-run")
    assert result.code == 0, result.err
    commands = [shlex.split(line) for line in result.out.splitlines()]
    passed_on = {"--env-factory=tuned_envs:Plain", "--actions=pass", "--strict-dtypes"}
    assert len(commands) == len({*ALL, *FRAGMENTS, TOO_LONG}) and all(passed_on <= {*command} for command in commands)
    assert list(job.folder.iterdir()) == []


@pytest.mark.parametrize(
    ("trouble", "words"),
    [
        ("crash", "measuring tuned_envs:Plain by itself: ended by SIGSEGV"),
        ("raise", "measuring tuned_envs:Plain by itself: exit code 70: RuntimeError: the simulator has diverged"),
        ("hang", "measuring tuned_envs:Plain by itself: did not end within 3 s"),
    ],
)
def test_an_env_that_fails_by_itself_is_told_before_any_job(job: Job, trouble, words):
    timeout_s = "3" if trouble == "hang" else "60"
    result = tune(job, *ENV, "--env-kwargs", json.dumps({"trouble": trouble}), "--timeout-s", timeout_s)
    assert result.code == 70 and result.messages[-1].startswith(words) and result.out == ""
    assert "gymnasium.make" in result.messages[-1] and processes_in(job.folder) == []


def test_a_policy_that_fails_is_not_taken_for_the_env(job: Job):
    result = tune(job, *ENV, "--policy", "tuned_envs:fail")
    assert (result.code, result.messages[-1]) == (
        65,
        "--policy tuned_envs:fail: ZeroDivisionError: no observation is good enough",
    )


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ((), 64, "give one of --env ID and --env-factory MODULE:CALLABLE, got none"),
        ((*ENV, "--repeats", "0"), 64, "--repeats must be at least 1, got 0"),
        ((*ENV, "--trial-s", "0"), 64, "--trial-s must be a number of seconds and more than 0, got 0"),
        ((*ENV, "--trial-s", "inf"), 64, "--trial-s must be a number of seconds and more than 0, got inf"),
        ((*ENV, "--trial-s", "nan"), 64, "--trial-s must be a number of seconds and more than 0, got nan"),
        ((*ENV, "--timeout-s", "nan"), 64, "--timeout-s must be more than 0 and finite, got nan"),
        ((*ENV, "--ranks", "1,8"), 64, "--num-envs must be at least the largest of --ranks, got 6 envs for 8 ranks"),
        (
            (*ENV, "--ranks", str(2**64)),
            64,
            "--ranks must be numbers of ranks up to 2147483647, got 18446744073709551616",
        ),
        ((*ENV, "--ranks", "two"), 64, "--ranks must be numbers of ranks such as 1,2,4,8, got 'two'"),
        ((*ENV, "--launcher", "no-such-mpirun"), 78, "there is no program no-such-mpirun"),
        ((*ENV, "--launcher", "'"), 64, '--launcher "\'": No closing quotation'),
        (("--env", "NoSuchEnv-v0"), 64, "NoSuchEnv"),
    ],
)
def test_bad_options_are_refused_in_one_line(tmp_path, monkeypatch, capsys, arguments, code, words):
    monkeypatch.chdir(tmp_path)
    assert main(["tune", *arguments]) == code
    messages = [line for line in capsys.readouterr().err.splitlines() if "by itself" not in line]
    assert len(messages) == 1 and words in messages[0] and list(tmp_path.iterdir()) == []


def test_of_the_candidates_with_the_usual_data_the_simplest_tie_is_named_too():
    native = Candidate(1, vectorization_mode="vector_entry_point")
    found = [*trials(groups=[100, 110, 120], two=[98, 105, 111]), *[Trial(native, each, 900.0) for each in range(3)]]
    told = trial_lines(Subject("x", 6, 2, "mpirun", ("--env", "x"), "node7", 1), found)
    assert told[-1] == "for the same data on any number of ranks: mpirun -n 2 python -m mpi_rollout --env x"


def test_a_single_job_of_each_is_said_to_be_too_few():
    told = trial_lines(Subject("x", 6, 2, "mpirun", (), "node7", 1), trials(two=[98], one=[50]))
    assert "too few jobs to know how much they differ; give more --repeats" in told


def test_the_memory_of_all_envs_and_ranks_is_told_and_too_much_is_warned_of():
    env = replace(SELDOM, bytes_per_env=2e9, process_bytes=100_000_000)
    subject = Subject("Big-v1", 6, 2, "mpirun", (), "node7", 20_000_000_000)
    told = "memory: 2 GB per env and at least 100 MB per rank; on 2 ranks 12.2 GB, free 20 GB"
    assert memory_lines(subject, env) == [told]
    warning = "WARNING: so many envs do not fit into this machine's memory; take fewer by --num-envs"
    assert memory_lines(replace(subject, free_bytes=12_000_000_000), env)[1] == warning


def test_a_command_can_be_given_to_a_shell():
    subject = Subject("x", 6, 2, "srun --mpi=pmix", ("--env-kwargs", '{"level": 3}'), "node7", 1)
    assert shlex.split(command(subject, Candidate(3, True, num_groups=2))) == [
        "srun", "--mpi=pmix", "-n", "3", "python", "-m", "mpi_rollout", "--env-kwargs", '{"level": 3}',
        "--dedicated-root", "--num-groups", "2",
    ]  # fmt: skip


def test_bytes_are_told_in_a_handy_unit():
    assert [size(each) for each in (0, 16, 2048, 3.5e6, 2.4e10)] == [
        "0 bytes",
        "16 bytes",
        "2.05 kB",
        "3.5 MB",
        "24 GB",
    ]


@pytest.mark.mpi
def test_a_real_env_is_tuned_by_real_jobs(job: Job):
    arguments = ("--ranks", "1", "--repeats", "1", "--trial-s", "0.2", "--num-envs", "4")
    result = job(None, "tune", "--env", "Acrobot-v1", *arguments, timeout=120)
    assert result.code == 0, result.err
    assert "use: mpirun -n 1 python -m mpi_rollout --env Acrobot-v1 --num-envs 4" in result.out
    assert "bare env.step loops on 1 rank at once; this command reached " in result.out
    assert list(job.folder.iterdir()) == []
