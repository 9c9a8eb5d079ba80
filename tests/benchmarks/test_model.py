"""The model gives back what was put into it, and saturates where trying each number of ranks finds it."""

import heapq
import json
import math
import shlex
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from jobs import CLONE, is_hydra, job_environment, launcher, run_job

from mpi_rollout.collect.team import NODES_VARIABLE
from mpi_rollout.studies.jobs import JobOptions
from mpi_rollout.studies.study_file import StudyFile, read_study

sys.path += [str(CLONE / "benchmarks"), str(CLONE / "benchmarks" / "model")]  # After the helpers of tests.

from fits import ExchangePoint, NoFit, calibrate, fit_ready, fit_writes, non_negative
from measuring import compiled
from model_study import Fitting, make_study
from sleeping import SleepingEnv
from step_model import (
    ONE_NODE,
    Constants,
    Network,
    Way,
    Workload,
    ceiling,
    predict,
    saturation,
    slowest,
)

MADE_UP = Constants(
    root_s=2e-5, root_s_per_env=5e-8, root_s_per_rank=3e-6, alpha_s=4e-6, beta_s_per_byte=1e-10, policy_s=1e-5,
    policy_s_per_env=2e-8,
)  # fmt: skip
WORK = Workload(4, 1e-3, 0.0, 8.0, 300.0)
READY, SHARDS = Way(is_ready=True), Way(16, on_workers=True, ranks_per_shard=8)
SERVING = replace(MADE_UP, serve_s=3e-5, away_s=1e-4)
WAYS = [Way(), Way(7), Way(16, on_workers=True), READY]


def point(num_ranks: int, envs_per_rank: int, slot_bytes: int, slower: float = 1.0) -> ExchangePoint:
    """An exchange as the constants would have it."""
    rows, c = num_ranks * envs_per_rank, MADE_UP
    nbytes = (num_ranks > 1) * (8 * rows + (num_ranks - 1) * slot_bytes)
    seconds = (
        c.root_s + c.root_s_per_env * rows + c.root_s_per_rank * (num_ranks - 1)
        + c.alpha_s * math.ceil(math.log2(num_ranks)) + c.beta_s_per_byte * nbytes
    )  # fmt: skip
    return ExchangePoint(num_ranks, rows, nbytes, seconds * slower, c.policy_s + c.policy_s_per_env * rows)


POINTS = [point(1, 4, 300), point(1, 64, 900), point(1, 256, 900), *(point(r, 4, 300) for r in (3, 4, 6, 8, 12)),
          point(8, 4, 262_144), point(12, 4, 262_144)]  # fmt: skip


def test_constants_are_found_in_what_they_made():
    found = calibrate(POINTS)
    assert found.worst_error < 1e-9 and found.num_points == len(POINTS)
    for name, value in MADE_UP.__dict__.items():
        assert getattr(found.constants, name) == pytest.approx(value, rel=1e-6), name


def test_a_part_that_the_points_do_not_have_is_never_negative():
    shrinking = [replace(each, exchange_s=3e-5 - 1e-6 * math.log2(each.num_ranks)) for each in POINTS]
    found = calibrate(shrinking)
    assert all(value >= 0 for value in found.constants.__dict__.values())
    assert found.constants.root_s == pytest.approx(3e-5, rel=0.05)


@pytest.mark.parametrize(
    ("points", "words"),
    [
        (POINTS[:7], "4 points of several ranks, 5 and one of one rank are needed"),
        (POINTS[3:], "7 points of several ranks, 5 and one of one rank are needed"),
        ([*POINTS[:3], *[point(4, 4, 300)] * 6], "do not tell the parts of the model apart"),
    ],
)
def test_too_few_points_are_refused(points, words):
    with pytest.raises(NoFit, match=words):
        calibrate(points)


def test_the_best_choice_without_negative_parts_is_found_among_all():
    """Against a fine grid of all pairs."""
    columns = np.array([[1.0, 1.0], [1.0, 2.0], [1.0, 4.0], [1.0, 8.0]])
    values = np.array([4.0, 3.0, 2.0, 1.0])
    found = non_negative(columns, values)
    grid = np.stack(np.meshgrid(np.linspace(0, 4, 401), np.linspace(0, 1, 101)), -1).reshape(-1, 2)
    errors = np.square(grid @ columns.T / values - 1).sum(axis=1)
    assert np.square(columns @ found / values - 1).sum() <= errors.min()
    assert found[1] == 0 and found[0] == pytest.approx(grid[errors.argmin()][0], abs=0.01)


def test_a_known_part_is_not_fitted_again():
    columns, known = np.array([[1.0], [2.0], [5.0]]), np.array([7.0, 7.0, 7.0])
    assert non_negative(columns, columns[:, 0] * 3 + known, known) == pytest.approx([3.0])
    assert non_negative(columns, known, known) == pytest.approx([0.0])


def test_the_step_of_one_rank_has_no_messages_and_no_waiting():
    step = predict(MADE_UP, replace(WORK, env_step_spread_s=1e-4), 1)
    assert (step.env_s, step.waiting_s) == (pytest.approx(4e-3), pytest.approx(0))
    assert step.exchange_s == pytest.approx(MADE_UP.root_s + 4 * MADE_UP.root_s_per_env)
    assert step.policy_s == pytest.approx(MADE_UP.policy_s + 4 * MADE_UP.policy_s_per_env)
    assert step.efficiency == pytest.approx(4e-3 / step.seconds)


def test_a_step_of_many_ranks_is_what_the_formula_says():
    step = predict(MADE_UP, WORK, 16)
    nbytes = 16 * 4 * 8 + 15 * 300
    assert step.exchange_s == pytest.approx(2e-5 + 64 * 5e-8 + 15 * 3e-6 + 4 * 4e-6 + nbytes * 1e-10)
    assert step.policy_s == pytest.approx(1e-5 + 64 * 2e-8)


def test_a_fragment_shares_what_an_exchange_costs_at_least_and_not_what_each_row_costs():
    fixed, rows = Constants(root_s=1e-3, root_s_per_rank=1e-5, alpha_s=1e-5), Constants(root_s_per_env=1e-6)
    once, shared = predict(fixed, WORK, 16), predict(fixed, WORK, 16, Way(10))
    assert shared.exchange_s == pytest.approx(once.exchange_s / 10)
    assert predict(rows, WORK, 16, Way(10)).exchange_s == pytest.approx(predict(rows, WORK, 16).exchange_s)


def test_the_actions_of_a_fragment_follow_an_order_unless_the_workers_choose_them():
    bytes_alone = Constants(beta_s_per_byte=1.0)
    slots, orders = 15 * 300, 64 * 8
    assert predict(bytes_alone, WORK, 16, Way(10)).exchange_s == pytest.approx(slots + orders * 11 / 10)
    chosen = predict(bytes_alone, WORK, 16, Way(10, on_workers=True))
    assert chosen.exchange_s == pytest.approx(slots + orders / 10)


def test_a_policy_on_the_workers_sees_the_envs_of_one_rank_only():
    assert predict(MADE_UP, WORK, 1000, Way(8, on_workers=True)).policy_s == pytest.approx(1e-5 / 8 + 4 * 2e-8)
    assert predict(MADE_UP, WORK, 1000, Way(8)).policy_s == pytest.approx(1e-5 / 8 + 4000 * 2e-8)
    assert predict(MADE_UP, WORK, 1000).policy_s == pytest.approx(1e-5 + 4000 * 2e-8)


def test_a_shard_is_a_run_of_its_own_whose_root_hears_the_others_now_and_then():
    shards = Way(16, on_workers=True, ranks_per_shard=32)
    written = replace(MADE_UP, write_s_per_env=1e-6, commit_s=0.1)
    alone = predict(written, WORK, 32, shards)
    assert alone.write_s == pytest.approx(32 * 4 * 1e-6 + 0.1 * (alone.seconds - alone.write_s) / 10)
    assert replace(alone, write_s=0.0) == predict(written, WORK, 32, Way(16, on_workers=True))
    many = predict(written, WORK, 512 * 32, shards)
    assert many.exchange_s - alone.exchange_s == pytest.approx(511 * 3e-6 * alone.seconds / 0.5)
    assert replace(many, exchange_s=0.0) == replace(alone, exchange_s=0.0)


def test_ranks_that_are_served_by_themselves_wait_as_long_as_in_a_simulated_queue():
    """Exponential service, the least wait that the approximation is made for; within the 6 % that it is known for."""
    constants, rng = Constants(serve_s=1e-4, away_s=1e-3), np.random.default_rng(0)
    for num_ranks in (2, 8, 33, 129):
        back = [(4e-3 + 1e-3) * (1 + rank / num_ranks) for rank in range(num_ranks - 1)]
        heapq.heapify(back)
        free_at, rounds = 0.0, 20_000
        for _ in range(rounds):
            ready_at = heapq.heappop(back)
            free_at = max(free_at, ready_at) + rng.exponential(1e-4)
            heapq.heappush(back, free_at + 5e-3)
        simulated = free_at * (num_ranks - 1) / rounds
        assert predict(constants, WORK, num_ranks, READY).seconds == pytest.approx(simulated, rel=0.06)


def test_what_writing_costs_is_found_in_what_it_made():
    assert fit_writes([(rows, 0.012 + 2e-6 * rows) for rows in (448, 1792, 3584)]) == pytest.approx((0.012, 2e-6))


def test_what_serving_a_rank_costs_is_found_in_what_it_made():
    made_up = Constants(serve_s=7e-5, away_s=4e-4)
    points = [
        (n, env_s, predict(made_up, replace(WORK, env_step_s=env_s / 4), n + 1, READY).seconds)
        for n, env_s in ((3, 0.02), (31, 0.02), (31, 0.004))
    ]
    assert fit_ready(points) == pytest.approx((7e-5, 4e-4), rel=1e-3)


def test_a_network_delays_each_exchange_once_and_no_shard():
    network = Network(num_nodes=4, latency_s=1e-3, s_per_byte=1e-6)
    for way, delay_s in ((Way(), 2e-3 + 300e-6), (Way(16, on_workers=True), 2e-3 / 16 + 300e-6)):
        near, far = predict(MADE_UP, WORK, 64, way), predict(MADE_UP, WORK, 64, way, network)
        assert far.seconds - near.seconds == pytest.approx(delay_s)
        assert predict(MADE_UP, WORK, 1, way, network) == predict(MADE_UP, WORK, 1, way)
    shards = Way(16, on_workers=True, ranks_per_shard=16)
    assert predict(MADE_UP, WORK, 64, shards, network) == predict(MADE_UP, WORK, 64, shards)
    lone = [predict(replace(MADE_UP, serve_s=1e-6), WORK, 2, READY, each).seconds for each in (ONE_NODE, network)]
    assert lone[1] - lone[0] == pytest.approx(2e-3 + 300e-6, rel=1e-3)


def test_fragments_wait_less_for_the_slowest_rank_than_steps_do():
    work = replace(WORK, env_step_spread_s=5e-4)
    waits = [predict(MADE_UP, work, 64, Way(length)).waiting_s for length in (1, 4, 16)]
    assert waits[0] > waits[1] > waits[2] > 0
    assert waits[0] / waits[2] == pytest.approx(4, rel=0.15)  # As the root of the steps between two exchanges.


@pytest.mark.parametrize("num_ranks", [2, 10, 1000, 16384])
def test_the_slowest_of_exponential_times_is_a_harmonic_sum(num_ranks: int):
    expected = sum(1 / k for k in range(1, num_ranks + 1))
    assert slowest(num_ranks, 1, 0.5, 0.5) == pytest.approx(0.5 * expected, rel=1e-4)


def test_the_slowest_of_long_sums_is_that_of_normal_times():
    """E[max] of 2 and 1000 standard normals: 1/sqrt(pi) and 3.2414."""
    for num_ranks, expected in ((2, 1 / math.sqrt(math.pi)), (1000, 3.2414)):
        found = slowest(num_ranks, 10_000, 1e-4, 1e-5)
        assert (found - 1) / 1e-3 == pytest.approx(expected, rel=0.002)
    # A sum of envs is an env with a smaller spread.
    assert slowest(32, 4, 1e-3, 1e-3) == pytest.approx(slowest(32, 1, 4e-3, 2e-3))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("env_step_s", [1e-6, 1e-3])
def test_the_root_saturates_where_trying_every_number_of_ranks_finds_it(env_step_s, way):
    work = replace(WORK, env_step_s=env_step_s)

    def is_over(num_ranks: int) -> bool:
        return predict(SERVING, work, num_ranks, way).efficiency <= 0.5

    tried = next((ranks for ranks in range(1, 10_000) if is_over(ranks)), None)
    assert saturation(SERVING, work, way) == tried


def test_without_costs_nothing_saturates():
    assert saturation(Constants(), WORK) is None and ceiling(Constants(), WORK) == math.inf


@pytest.mark.parametrize("way", [*WAYS, SHARDS])
@pytest.mark.parametrize(("env_step_s", "root_s"), [(1e-8, 0.0), (1e-8, 2e-5), (1e-5, 2e-5), (1e-3, 2e-5)])
def test_no_number_of_ranks_has_a_rate_above_the_ceiling(env_step_s, root_s, way):
    """Also of envs so short that a second rank costs the root more than it brings."""
    work, constants = replace(WORK, env_step_s=env_step_s), replace(SERVING, root_s=root_s, policy_s=root_s / 2)
    highest = ceiling(constants, work, way)
    ranks = [*range(1, 100), *(2**power for power in range(7, 31))]
    rates = [4 * way.num_stepping(each) / predict(constants, work, each, way).seconds for each in ranks]
    assert max(rates) <= highest and max(rates) == pytest.approx(highest, rel=0.01)


MEASURED = CLONE / "results" / "measured"


def test_the_measured_study_gives_the_constants_that_the_readme_tells_of():
    fitting = Fitting(read_study(str(MEASURED / "model.json")))
    assert fitting.most_fitted == 32 and fitting.is_crowded and fitting.result.num_points == 16
    assert fitting.result.worst_error == pytest.approx(0.364, abs=0.001)
    assert fitting.result.constants.root_s_per_rank == pytest.approx(5.43e-5, rel=0.001)
    assert fitting.result.constants.write_s_per_env == pytest.approx(1.51e-6, rel=0.01)
    held_out = [check for check in fitting.checks if check.is_held_out]
    assert {check.num_ranks for check in held_out} == {64, 128} and len(held_out) == 8
    assert [held_out[0].error, held_out[1].error] == pytest.approx([-0.040, -0.182], abs=0.001)
    assert held_out[0].measured.median == pytest.approx(0.02892, rel=1e-3)


def test_what_is_held_out_changes_no_constant():
    file = read_study(str(MEASURED / "model.json"))
    others = tuple(
        replace(sample, exchange_s=5 * sample.exchange_s) if sample.point.num_ranks == 64 else sample
        for sample in file.samples
    )
    assert Fitting(replace(file, samples=others)).result == Fitting(file).result


def test_a_plain_study_in_lockstep_gives_constants_too():
    fitting = Fitting(read_study(str(MEASURED / "weak.json")))
    assert fitting.most_fitted == math.inf and fitting.result.constants.alpha_s > 0
    assert max(abs(check.error) for check in fitting.checks) < 0.15


def test_the_jobs_tell_ranks_and_envs_from_bytes():
    study = make_study(0.005, 0.0, 64, 4, (1, 3, 4, 6, 8), (1, 2, 16), (32,), JobOptions())
    configs = {point: study.config(point, "run.h5") for point in study.points}
    probes = [config for point, config in configs.items() if "env_kwargs" in dict(point.options)]
    assert {config.num_envs for config in probes if config.expect_ranks == 1} == {4, 64, 256}
    assert {config.env_kwargs["observation_bytes"] for config in probes if config.expect_ranks == 8} == {8, 65_536}
    checks = [config for config in configs.values() if config not in probes]
    assert {(config.expect_ranks, config.fragment_length) for config in checks} == {
        (ranks, length) for ranks in (1, 2, 16) for length in ("1", "32")
    }
    assert {config.env_kwargs["observation_bytes"] for config in checks} == {64}


def run_program(folder: Path, *arguments: str, timeout: float = 60) -> subprocess.CompletedProcess:
    command = [sys.executable, str(CLONE / "benchmarks" / "model"), *arguments]
    return subprocess.run(command, cwd=folder, env=job_environment(), capture_output=True, text=True, timeout=timeout)


def test_a_file_is_shown_and_drawn_with_its_machine_and_what_was_held_out(tmp_path: Path):
    shutil.copy(MEASURED / "model.json", tmp_path)
    done = run_program(tmp_path, "show", "model.json")
    assert done.returncode == 0, done.stderr
    told = done.stdout.splitlines()
    assert told[0].endswith("4 envs per rank: vm (AMD EPYC, 2 cores), 2026-11-27")
    assert "held out, 64 ranks, lockstep: computed -4.0 %" in told
    assert told[-2:] == ["model-curves.png", "model-curves.svg"]
    assert sum(line.endswith("computed:") for line in told) == 4


def test_what_gives_no_constants_is_refused_in_one_line(tmp_path: Path):
    done = run_program(tmp_path, "show", str(MEASURED / "strong-acrobot.json"))
    assert (done.returncode, done.stderr) == (1, "1 points of several ranks, 5 and one of one rank are needed\n")


def test_jobs_of_sleeping_envs_are_measured(tmp_path: Path):
    """By a launcher that starts nothing and says what a run would say."""
    launcher = shlex.join([sys.executable, str(CLONE / "tests" / "helpers" / "fake_launcher.py")])
    options = ("--probe", "1,3", "--check", "1,2", "--fragment-length", "2", "--repeats", "1", "--launcher", launcher)
    done = run_program(tmp_path, "measure", *options, "--out", "model.json")
    assert done.returncode == 0, done.stderr
    file: StudyFile = read_study(str(tmp_path / "model.json"))
    assert file.done == {*file.study.order()} and not file.failed and len(file.done) == 14


def test_a_sleeping_env_sleeps_as_long_as_it_is_asked_on_average(monkeypatch):
    slept: list[float] = []
    monkeypatch.setattr("time.sleep", slept.append)
    env = SleepingEnv(step_s=0.02, spread_s=0.01, observation_bytes=5)
    assert env.reset(seed=3)[0].shape == env.observation_space.shape == (5,)
    for _ in range(1000):
        env.step(0)
    assert np.mean(slept) == pytest.approx(0.02, rel=0.05) and np.std(slept) == pytest.approx(0.01, rel=0.1)


def test_jobs_have_the_delays_of_a_network_and_count_messages(tmp_path: Path):
    """A step waits for its order and for the answer; no time is an upper limit."""
    if is_hydra() or not shutil.which("cc"):
        pytest.skip("network.c is for Open MPI, and needs a C compiler")
    library, counts = compiled(str(tmp_path / "network.so")), tmp_path / "counts"
    run = "--env CartPole-v1 --num-envs 4 --fragment-length 1 --no-trajectories --wait sleep --progress none --json"
    extra = {"LD_PRELOAD": library, "NETWORK_COUNTS": str(counts), "NETWORK_LATENCY_S": "0.02", NODES_VARIABLE: "2"}
    seconds = []
    for num_steps in ("10", "30"):
        words = [
            *launcher(4),
            sys.executable,
            "-m",
            "mpi_rollout",
            *run.split(),
            "--num-steps",
            num_steps,
            "--out",
            num_steps,
        ]
        done = run_job(words, tmp_path, **extra)
        assert done.code == 0, done.err
        seconds.append(json.loads(done.out.splitlines()[-1])["seconds"])
    few, many = (json.loads(line) for line in counts.read_text().splitlines())
    assert many["messages"] - few["messages"] == 20 * 3 * 2
    assert seconds[0] > 10 * 0.04 and seconds[1] > 30 * 0.04
