"""`scaling sim` finds the constants of a known machine, says of all it tells where it comes from, and draws it."""

import json
import os
import re
import shlex
import signal
import sys
from pathlib import Path

import fake_sim_launcher as known
import gymnasium
import h5py
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from jobs import HELPERS, Job, Result, processes_in
from made_up_studies import edited, made_up, make_study

from mpi_rollout.bench.scaling.curves import SimulationAnalysis
from mpi_rollout.bench.scaling.simulation import Envs, read_simulation
from mpi_rollout.bench.sleeping import SleepingEnv
from mpi_rollout.cli import main
from mpi_rollout.core.layout import SlotLayout
from mpi_rollout.exchange.orders import HEADER_NBYTES

LAUNCHER = shlex.join([sys.executable, str(HELPERS / "fake_sim_launcher.py")])
ENVS = ("--env-step-s", "0.005", "--obs-bytes", "40", "--envs-per-rank", "4")
CONSTANTS = ("--root-s", "2e-5", "--root-s-per-env", "5e-8", "--root-s-per-rank", "3e-6", "--alpha-s", "4e-6")


def sim(job: Job, *arguments: str, timeout: float = 60.0, **trouble: str) -> Result:
    return job.forked("scaling", "sim", "--out", "sim.h5", *arguments, timeout=timeout, **trouble)


def measured(job: Job, *arguments: str, **trouble: str) -> Result:
    """With the constants of the made-up machine, whose jobs take no time."""
    some = ("--launcher", LAUNCHER, "--repeats", "1", "--probe", "1,3,4,6,8")
    return sim(job, *ENVS, *some, *arguments, **trouble)


def analysis(job: Job) -> SimulationAnalysis:
    return SimulationAnalysis(read_simulation(str(job.folder / "sim.h5")))


def line_with(result: Result, words: str) -> str:
    return next(line for line in result.out.splitlines() if words in line)


def test_the_constants_of_a_machine_are_found_by_its_jobs(job: Job):
    result = measured(job, "--check", "1,16,64", SHARING="5e-5")
    assert result.code == 0, result.err
    found = analysis(job)
    for name, value in (
        ("root_s", known.ROOT_S), ("root_s_per_env", known.PER_ENV_S), ("root_s_per_rank", known.PER_RANK_S),
        ("alpha_s", known.ALPHA_S), ("beta_s_per_byte", known.BETA_S), ("policy_s", known.POLICY_S),
        ("policy_s_per_env", known.POLICY_PER_ENV_S),
    ):  # fmt: skip
        assert getattr(found.constants, name) == pytest.approx(value, rel=1e-4), name
    assert found.fitting.sharing_s == pytest.approx(5e-5, rel=1e-4)
    assert "measured here by 11 jobs of up to 16 ranks, more than cores" in line_with(result, "constants,")
    with h5py.File(job.folder / "sim.h5") as file:
        assert json.loads(file.attrs["constants_used"]) == found.constants.__dict__
        assert file.attrs["constants_used_origin"] == found.origin


def test_the_largest_number_of_ranks_is_computed_without_its_own_jobs(job: Job):
    result = measured(job, "--check", "1,16,64", SHARING="5e-5")
    checks = analysis(job).checks
    held_out = [(1, False), (16, False), (64, True)]
    assert [(check.num_ranks, check.is_held_out) for check in checks] == 2 * held_out
    assert all(abs(check.error) < 0.001 for check in checks)
    for largest in ("64 ranks", "64 ranks, fragments of 32"):
        told = line_with(result, f"the largest, {largest}, held out of the fit: computed ")
        assert told.endswith("within 15 %")


@pytest.mark.parametrize("inference", ["root", "workers"])
def test_fragments_are_checked_by_jobs_of_their_own_which_are_in_no_fit(job: Job, inference: str):
    result = measured(job, "--check", "1,16", "--fragment-length", "1,8,64", "--inference", inference, SHARING="5e-5")
    assert result.code == 0, result.err
    found = analysis(job)
    assert [check.fragment_length for check in found.checks] == [1, 1, 8, 8, 64, 64]
    assert all(abs(check.error) < 0.001 for check in found.checks)
    assert all(setting.fragment_length == 1 for setting in found.fitting.fitted(True))
    labels = [f"fragments of {length}, actions from the {inference} (computed)" for length in (8, 64)]
    assert [curve.label for curve in found.curves] == ["lockstep (computed)", *labels]
    rows = [line.split()[:2] for line in result.out.splitlines() if line.strip().startswith(("8 ", "64 "))]
    assert ["64", "16*"] in rows


def test_given_constants_are_checked_too_and_sharing_cores_is_measured_without_the_largest(job: Job):
    more = ("--beta-s-per-byte", "1e-10", "--policy-s", "1e-5", "--policy-s-per-env", "2e-8", "--check", "1,16,64")
    result = sim(job, *ENVS, *CONSTANTS, *more, "--launcher", LAUNCHER, "--repeats", "1", SHARING="5e-5")
    assert result.code == 0, result.err
    found = analysis(job)
    assert (
        found.fitting.sharing_s == pytest.approx(5e-5, rel=1e-3)
        and "constants, given on the command line" in result.out
    )
    assert [check.is_held_out for check in found.checks] == 2 * [False, False, True]
    assert all(abs(check.error) < 0.001 for check in found.checks)


def test_what_the_largest_number_of_ranks_shows_is_not_explained_away(job: Job):
    """Sharing cores costs 20 ms there, which nothing before told."""
    assert measured(job, "--check", "1,16").code == 0
    with edited(job.folder / "sim.h5") as stored:
        jobs = stored["jobs"][...]
        is_largest = (jobs["num_ranks"] == 16) & (stored["settings"]["is_check"])
        jobs["seconds"][is_largest] += 0.02 * jobs["num_steps"][is_largest]
        jobs["idle_s"][is_largest] += 0.02 * jobs["num_steps"][is_largest]
        stored["jobs"][...] = jobs
    found = analysis(job)
    assert found.checks[1].error == pytest.approx(-0.5, abs=0.02) and found.fitting.sharing_s < 1e-9


def test_where_enough_jobs_had_a_core_for_each_rank_the_others_are_in_no_fit(job: Job):
    """Exchanges of 12 ranks, the only ones that share cores, take thrice as long."""
    assert measured(job, "--probe", "1,3,4,6,8,12").code == 0
    with edited(job.folder / "sim.h5") as stored:
        jobs = stored["jobs"][...]
        jobs["oversubscribed"] = jobs["num_ranks"] == 12
        jobs["exchange_s"][jobs["oversubscribed"]] *= 3
        stored["jobs"][...] = jobs
    found = analysis(job)
    assert found.constants.root_s_per_rank == pytest.approx(known.PER_RANK_S, rel=1e-4) and not found.fitting.is_crowded
    assert "measured here by 8 jobs of up to 8 ranks, whose envs sleep" in found.origin


def test_exact_measurements_give_the_same_curve_whichever_number_of_ranks_is_left_out(job: Job):
    assert measured(job, "--probe", "1,3,4,6,8,12,16").code == 0
    for curve in analysis(job).curves:
        assert len(curve.saturations) == 6
        assert curve.saturations == pytest.approx([curve.saturation] * 6, rel=1e-3)
        assert all(row.efficiency_low == pytest.approx(row.efficiency_high, rel=1e-3) for row in curve.rows)


def test_what_hangs_on_one_number_of_ranks_is_told(job: Job):
    """Exchanges of 16 ranks take thrice as long as the others would have it."""
    assert measured(job, "--probe", "1,3,4,6,8,12,16").code == 0
    with edited(job.folder / "sim.h5") as stored:
        jobs = stored["jobs"][...]
        jobs["exchange_s"][jobs["num_ranks"] == 16] *= 3
        stored["jobs"][...] = jobs
    curve = analysis(job).curves[0]
    assert curve.saturations[-1] > 1.2 * curve.saturation
    assert curve.rows[-1].efficiency_high > curve.rows[-1].efficiency
    again = measured(job, "--probe", "1,3,4,6,8,12,16")
    told = f"({curve.saturations[0]:,.0f} to {curve.saturations[-1]:,.0f} where any one number of ranks is left out"
    assert told in line_with(again, "lockstep (computed):")


def test_a_check_within_the_probes_is_not_called_held_out(job: Job):
    result = measured(job, "--check", "1,8")
    assert result.code == 0 and "held out" not in result.out
    assert not any(check.is_held_out for check in analysis(job).checks)


def test_curves_and_endings_say_that_they_are_computed(job: Job):
    result = sim(job, *ENVS, *CONSTANTS, "--ranks", "1,16384", "--fragment-length", "8,64")
    assert result.code == 0, result.err
    labels = [curve.label for curve in analysis(job).curves]
    assert labels == [
        "lockstep (computed)",
        "fragments of 8, actions from the workers (computed)",
        "fragments of 64, actions from the workers (computed)",
    ]
    for label in labels:
        assert re.search(r"from [\d,]+ ranks on, exchange and policy take as long", line_with(result, label + ":"))
    assert "constants, given on the command line" in result.out and "measured" not in result.out
    assert "envs, given: 5 ms per step, observations of 40 bytes" in result.out


def test_the_file_has_its_curves_for_every_reader(job: Job):
    assert sim(job, *ENVS, *CONSTANTS, "--ranks", "1,64").code == 0
    with h5py.File(job.folder / "sim.h5") as file:
        rows = file["curves"][...]
    assert rows["num_ranks"].tolist() == [1, 64] * 2 and rows["fragment_length"].tolist() == [1, 1, 32, 32]
    seconds = rows["env_s"] + rows["waiting_s"] + rows["exchange_s"] + rows["policy_s"]
    assert rows["env_steps_per_s"] == pytest.approx(rows["num_envs"] / seconds)


def test_constants_come_from_a_weak_study(job: Job):
    study = make_study("weak", (1, 2, 4, 8, 16, 32))
    made_up(study).write(str(job.folder / "weak.h5"), "")
    result = sim(job, *ENVS, "--constants", "weak.h5", "--ranks", "1,1024")
    assert result.code == 0, result.err
    assert "constants, fitted to the weak study weak.h5, 1 to 32 ranks on node7 (Made-up 9000" in result.out
    found = analysis(job).constants
    assert (found.root_s, found.alpha_s, found.beta_s_per_byte) == pytest.approx((1e-5, 4e-6, 1e-10), rel=1e-3)


def test_a_laptop_s_study_gives_constants_and_says_that_its_ranks_share_cores(job: Job):
    """Without them it would have two points."""
    made_up(make_study("weak", (1, 2, 3, 4, 8)), num_cores=2).write(str(job.folder / "weak.h5"), "")
    result = sim(job, *ENVS, "--constants", "weak.h5", "--ranks", "1,1024")
    assert result.code == 0, result.err
    assert "weak.h5, 1 to 8 ranks, more than cores, so that curves tend to be too low, on node7" in result.out


def test_a_study_of_too_few_points_gives_no_constants(job: Job):
    made_up(make_study("weak", (1, 2))).write(str(job.folder / "weak.h5"), "")
    result = sim(job, *ENVS, "--constants", "weak.h5")
    assert (result.code, result.messages) == (
        65,
        ["--constants weak.h5: its exchange has no fit: 2 points, 5 are needed; take a study with more points"],
    )
    assert not (job.folder / "sim.h5").exists()


def test_a_job_that_fails_is_kept_and_the_rest_is_done(job: Job):
    result = measured(job, "--check", "1,16", FAIL="16")
    assert result.code == 70
    assert result.messages[-1] == "2 of 13 jobs failed; sim.h5 has their errors"
    assert "failed: 16 ranks, 4 envs each, 40 bytes, repeat 0: exit code 70: rank 1 (node7): no room" in result.out
    assert len(analysis(job).curves) == 2


def test_without_enough_results_it_says_so_and_computes_nothing(job: Job):
    result = sim(job, *ENVS, "--launcher", LAUNCHER, "--repeats", "1", "--probe", "1,2,3,4", FAIL="4")
    assert result.code == 70 and "constants, none: " in result.out and "computed" not in result.out
    assert job(None, "plot", "sim.h5").messages[0].startswith("sim.h5 has no curves yet: none: ")


def test_a_simulation_that_is_stopped_is_continued_by_the_same_command(job: Job):
    arguments = ("scaling", "sim", "--out", "sim.h5", *ENVS, "--launcher", LAUNCHER, "--repeats", "1")
    log = job.folder / "log"
    running = job.start(None, *arguments, HANG="6", LOG=str(log))
    running.wait_until(lambda: log.exists() and "6" in log.read_text().split())
    os.kill(running.pid, signal.SIGINT)
    result = running.finish()
    assert result.code == 75 and "jobs are done; the same command continues" in result.messages[-1]
    assert processes_in(job.folder) == [] and not (job.folder / "sim.h5.job").exists()
    before = len(log.read_text().split())
    again = job(None, *arguments, LOG=str(log))
    assert again.code == 0, again.err
    settings = [setting for setting, _ in read_simulation(str(job.folder / "sim.h5")).samples]
    assert len(settings) == len(set(settings)) == len(log.read_text().split()) - 1 > before


def test_another_question_is_not_answered_in_the_same_file(job: Job):
    assert sim(job, *ENVS, *CONSTANTS).code == 0
    before = (job.folder / "sim.h5").read_bytes()
    result = sim(job, *ENVS, *CONSTANTS, "--envs-per-rank", "8")
    assert result.code == 64
    assert "it is of another simulation: envs per rank was 4, is 8; give the same" in result.messages[0]
    assert (job.folder / "sim.h5").read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ((), 64, "give one of --env-step-s and --env (or --env-factory), got none"),
        ((*ENVS, "--env", "CartPole-v1", *CONSTANTS), 64, "(or --env-factory), got both"),
        ((*ENVS, "--alpha-s", "-1"), 64, "--alpha-s must be a number of seconds and at least 0, got -1"),
        ((*ENVS, "--alpha-s", "1", "--constants", "x.h5"), 64, "one by one, got both: --alpha-s too"),
        ((*ENVS, "--constants", "x.h5"), 65, "x.h5: no such file"),
        ((*ENVS, *CONSTANTS, "--check", "1,65"), 64, "--check starts real jobs, of 64 ranks at most, got 65"),
        ((*ENVS, "--probe", "1,2"), 64, "--probe must be at least 4 numbers of ranks, 1 included, got 1,2"),
        ((*ENVS, *CONSTANTS, "--ranks", "x"), 64, "--ranks must be numbers of ranks such as 1,2,4,8, got 'x'"),
        (
            (*ENVS, *CONSTANTS, "--fragment-length", "0"),
            64,
            "--fragment-length must be numbers of steps such as 16,128",
        ),
        (
            (*CONSTANTS, "--env", "CartPole-v1", "--obs-bytes", "8"),
            64,
            "--obs-bytes goes with --env-step-s; a real env is",
        ),
        ((*ENVS, *CONSTANTS, "--env-kwargs", '{"level": 3}'), 64, "--env-kwargs are those of --env or --env-factory"),
        ((*ENVS, *CONSTANTS, "--probe", "1,2,3,4"), 64, "--probe measures constants, which are given or from a study"),
        ((*ENVS, *CONSTANTS, "--envs-per-rank", str(2**50)), 64, "--envs-per-rank must be at most 2147483647, got"),
        ((*ENVS, *CONSTANTS, "--timeout-s", "nan"), 64, "--timeout-s must be more than 0 and finite, got nan"),
        (
            (*ENVS, *CONSTANTS, "--ranks", str(2**63)),
            64,
            "--ranks must be numbers of ranks up to 2147483647, got 9223372036854775808",
        ),
        (("--env-step-s", "0", *CONSTANTS), 64, "--env-step-s must be more than 0, got 0"),
        ((*ENVS, "--launcher", "no-such-mpirun"), 78, "there is no program no-such-mpirun"),
        ((*CONSTANTS, "--env", "NoSuchEnv-v0"), 64, "NoSuchEnv"),
    ],
)
def test_bad_options_are_refused_in_one_line(tmp_path: Path, monkeypatch, capsys, arguments, code, words):
    monkeypatch.chdir(tmp_path)
    assert main(["scaling", "sim", "--out", "sim.h5", *arguments]) == code
    messages = [line for line in capsys.readouterr().err.splitlines() if "measuring NoSuchEnv-v0" not in line]
    assert len(messages) == 1 and words in messages[0]
    assert list(tmp_path.iterdir()) == []


def test_a_real_env_is_measured_and_carried_to_many_ranks(job: Job):
    result = sim(job, "--env", "CartPole-v1", "--envs-per-rank", "64", *CONSTANTS, "--ranks", "1,16")
    assert result.code == 0, result.err
    assert "envs, measured: " in result.out and "observations of 16 bytes, actions of 8" in result.out
    file = read_simulation(str(job.folder / "sim.h5"))
    assert ", resets included, observations" in result.out
    assert 1e-6 < file.envs.step_s < 1e-3 and file.envs.step_spread_s > 0
    again = sim(job, "--env", "CartPole-v1", "--envs-per-rank", "64", *CONSTANTS, "--ranks", "1,16")
    assert again.out == result.out  # It is not measured again.


def test_a_picture_has_machine_date_constants_and_what_is_measured_apart_from_what_is_computed(job: Job):
    assert measured(job, "--check", "1,16").code == 0
    result = job(None, "plot", "sim.h5")
    assert (result.code, result.out.split()) == (0, ["sim.png", "sim.svg"])
    assert (job.folder / "sim.png").read_bytes().startswith(b"\x89PNG")
    texts = "\n".join(re.findall(r"<!-- (.*?) -->", (job.folder / "sim.svg").read_text(), re.DOTALL))
    for words in (
        "lockstep (computed)",
        "actions from the workers",
        "measured, more ranks than cores",
        "alpha 4 us per level",
    ):
        assert words in texts
    assert os.uname().nodename in texts
    assert read_simulation(str(job.folder / "sim.h5")).origin["started"][:10] in texts


def test_a_dry_run_prints_all_jobs_and_starts_none(job: Job):
    result = measured(job, "--check", "1,16", "--dry-run")
    assert (result.code, result.err) == (0, "") and list(job.folder.iterdir()) == []
    commands = [shlex.split(line) for line in result.out.splitlines()]
    assert len(commands) == 5 + 2 + 2 + 2 + 2
    lengths = [next((word for word in command if "--fragment-length=" in word), "") for command in commands]
    assert lengths.count("--fragment-length=1") == 11 and lengths.count("--fragment-length=32") == 2
    assert all("--env-factory=mpi_rollout.bench.sleeping:SleepingEnv" in command for command in commands)


def test_messages_are_as_large_as_the_program_lays_them_out():
    space = gymnasium.spaces.Box(0, 255, (40,), np.uint8)
    work = Envs(0.001, 0.0, 40, 8).workload(6)
    assert work.slot_bytes == SlotLayout(space, 6).nbytes and work.order_bytes_per_env == 8


@pytest.mark.filterwarnings("ignore")
def test_the_sleeping_env_is_a_gymnasium_env_and_sleeps_as_long_as_it_should(monkeypatch):
    slept = []
    monkeypatch.setattr("time.sleep", slept.append)
    check_env(SleepingEnv(0.25, observation_bytes=5), skip_render_check=True)
    assert slept and set(slept) == {0.25}
    slept.clear()
    env = SleepingEnv(0.25, 0.05)
    env.reset(seed=0)
    for _ in range(2000):
        env.step(0)
    assert (np.mean(slept), np.std(slept)) == (pytest.approx(0.25, rel=0.02), pytest.approx(0.05, rel=0.1))


@pytest.mark.mpi
def test_real_jobs_of_sleeping_envs_are_compared_with_the_model(job: Job):
    envs = ("--env-step-s", "0.002", "--envs-per-rank", "2")
    result = sim(job, *envs, *CONSTANTS, "--check", "1,3", "--repeats", "1", "--ranks", "1,64")
    assert result.code == 0, result.err
    checks = analysis(job).checks
    assert [(check.fragment_length, check.num_ranks) for check in checks] == [(1, 1), (1, 3), (32, 1), (32, 3)]
    samples = read_simulation(str(job.folder / "sim.h5")).samples
    in_order = sorted(samples, key=lambda sample: (sample[0].fragment_length, sample[0].num_ranks))
    for check, (setting, done) in zip(checks, in_order, strict=True):
        assert done.fragment_length == setting.fragment_length
        assert (done.inference, done.order_bytes) == (
            "workers" if done.fragment_length > 1 else "root",
            HEADER_NBYTES + 8 * done.num_envs,
        )
        assert check.measured_s == pytest.approx(done.seconds / setting.num_steps) and check.measured_s > 4e-3
        assert done.num_envs == 2 * check.num_ranks and done.mpi_library
