"""`compare` steps the same envs in every system, counts env steps and nothing else, and names the fastest."""

import json

import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv
from jobs import Job, are_gone, assert_same_bytes

from mpi_rollout.cli import main
from mpi_rollout.errors import UsageError
from mpi_rollout.studies.compare import systems, turn
from mpi_rollout.studies.compare.comparison import TakenTurn, lines
from mpi_rollout.studies.compare.pool import process_pool
from mpi_rollout.studies.compare.systems import Setup, System, systems_of
from mpi_rollout.studies.compare.turn import Stepper, Turn, drawn_actions, summed

NUM_ENVS, SWEEPS = 6, 41
LENGTHS = 3 + np.arange(NUM_ENVS) % 5  # Of the episodes of `envs.Counting`, seeded with 0, 1, ...
NEXT_STEP = int((SWEEPS - SWEEPS // (LENGTHS + 1)).sum())  # Env steps of as many rows: one row in each episode resets.


def setup_of(env: str, num_envs: int = NUM_ENVS, **kwargs) -> Setup:
    return Setup({"env": env, "env_factory": None, "env_kwargs": kwargs}, num_envs, num_cores=2)


@pytest.mark.parametrize(
    ("name", "num_steps"),
    [
        ("sync", NEXT_STEP),
        ("async_", NEXT_STEP),
        ("pool", NEXT_STEP),
        ("mpi", NEXT_STEP),
        ("bare", SWEEPS * NUM_ENVS),
        ("sb3_dummy", SWEEPS * NUM_ENVS),
        ("sb3_subproc", SWEEPS * NUM_ENVS),
    ],
)
def test_rows_that_only_reset_are_not_counted(name: str, num_steps: int):
    if name.startswith("sb3"):
        pytest.importorskip("stable_baselines3")
    with getattr(systems, name)(setup_of("registered_envs:Counting-v0")) as stepper:
        stepper.reset()
        assert stepper.count([stepper.sweep() for _ in range(SWEEPS)]) == num_steps


@pytest.mark.parametrize(
    ("env_id", "num_envs", "num_processes"), [("registered_envs:Counting-v0", 5, 2), ("CartPole-v1", 3, 3)]
)
def test_a_pool_gives_what_sync_vector_env_gives(env_id: str, num_envs: int, num_processes: int):
    functions = setup_of(env_id, num_envs).functions
    envs = SyncVectorEnv(functions)
    with process_pool(functions, num_processes, seed=7) as step:
        assert_same_bytes({"observations": step(None)[0]}, {"observations": envs.reset(seed=7)[0]})
        for actions in drawn_actions(envs.action_space):
            ours, theirs = step(actions), envs.step(actions)[:4]
            assert all(np.array_equal(one, other) for one, other in zip(ours, theirs, strict=True))


def test_a_process_of_a_pool_that_dies_is_noticed():
    with (
        process_pool(setup_of("registered_envs:FailingAtOnce-v0", 4).functions, 2, 0) as step,
        pytest.raises(EOFError),
    ):
        step(None)
        step(np.full(4, 2))


class Ticking:
    """A stepper whose sweeps take as long as told, on a clock of their own; each returns its number."""

    def __init__(self, sweep_s: float, monkeypatch: pytest.MonkeyPatch):
        self.sweep_s, self.now_s, self.number = sweep_s, 0.0, 0
        monkeypatch.setattr(turn, "perf_counter", lambda: self.now_s)

    def reset(self) -> None:
        self.now_s += 0.5

    def sweep(self) -> int:
        self.now_s, self.number = self.now_s + self.sweep_s, self.number + 1
        return self.number


@pytest.mark.parametrize(
    ("sweep_s", "num_sweeps"),
    [
        (1.0, 1),  # Longer than the window: one is taken.
        (2.0**-6, 16),  # No more than fit in.
        (1e-6, 250_048),  # 64 between two looks at the clock.
    ],
)
def test_a_turn_counts_the_sweeps_of_its_window(monkeypatch, sweep_s: float, num_sweeps: int):
    ticking = Ticking(sweep_s, monkeypatch)
    turn = Stepper(ticking.reset, ticking.sweep, lambda sweeps: 10 * len(sweeps)).take_turn(0.25)
    assert turn.reset_s == 0.5 and turn.env_steps == 10 * num_sweeps
    assert turn.seconds == pytest.approx(num_sweeps * sweep_s)


def test_a_window_of_nothing_but_resets_goes_on_to_the_first_env_step(monkeypatch):
    ticking = Ticking(1.0, monkeypatch)
    turn = Stepper(ticking.reset, ticking.sweep, lambda sweeps: sum(each >= 4 for each in sweeps)).take_turn(0.5)
    assert turn == Turn(0.5, 1, 3.0)


def test_the_rates_of_ranks_are_summed_and_who_only_served_has_none():
    assert summed([Turn(0.1, 300, 1.0), None, Turn(0.2, 400, 2.0)]) == Turn(0.2, 1000, 2.0)


def samples_of(**rates: tuple[int, ...]) -> list[TakenTurn]:
    """Made up samples, of a second each."""
    return [TakenTurn(name, number, Turn(0.1, rate, 1.0)) for name in rates for number, rate in enumerate(rates[name])]


def test_the_fastest_is_named_and_whom_it_cannot_be_told_from():
    listed = [System("bare", "loop", "", kind="base"), System("mpi", "ours", ""), System("sync", "theirs", "")]
    listed += [System("pool", "a pool", ""), System("envpool", "EnvPool", "", kind="native")]
    samples = samples_of(
        bare=(99, 100, 101), mpi=(180, 200, 220), sync=(80, 90, 95), pool=(170, 190, 230), envpool=(400, 500, 600)
    )
    *table, _, fastest, of_all = lines(listed, samples)
    assert fastest == "fastest: ours or a pool" and of_all == "fastest of all: EnvPool"
    assert table[2].split() == ["ours", "200", "180", "to", "220", "2"]
    assert lines(listed[:4], [each for each in samples if each.system != "envpool"])[-1] == "fastest: ours or a pool"


@pytest.mark.parametrize(
    ("env", "kwargs", "name"),
    [
        ("CartPole-v1", {}, "CartPole-v1"),
        ("ale_py:ALE/Pong-v5", {}, "Pong-v5"),
        ("mine:CartPole-v1", {}, "mine:CartPole-v1"),
        ("CartPole-v1", {"sutton_barto_reward": True}, ""),  # EnvPool has other arguments.
    ],
)
def test_envpool_has_an_env_under_its_own_name(env: str, kwargs: dict, name: str):
    assert systems.envpool_id(setup_of(env, **kwargs)) == name


def test_systems_that_do_not_apply_say_why():
    reasons = {system.name: system.reason_to_skip(setup_of("Mine-v0", 1)) for system in systems_of(2, 2)}
    assert reasons["bare"] == reasons["sync"] == "" and reasons["mpi"] == "1 env for 2 processes"
    assert set(reasons) == set(systems.NAMES.split(", "))


def test_a_system_that_is_not_there_is_refused_and_the_bare_loop_is_always_measured():
    with pytest.raises(UsageError, match="--systems: there is no gym; there are bare, bare-all, mpi, sync"):
        systems.chosen("sync,gym", systems_of(2, 2))
    assert [system.name for system in systems.chosen(" sync, ", systems_of(2, 2))] == ["bare", "sync"]


@pytest.mark.parametrize(("num_ranks", "code", "words"), [(0, 64, "got 0"), (1, 0, "mpi: mpi_rollout, 1 rank\n")])
def test_one_rank_is_enough(num_ranks: int, code: int, words: str, capfd: pytest.CaptureFixture):
    options = ["--num-envs", "1", "--ranks", str(num_ranks), "--systems", "mpi", "--dry-run"]
    assert main(["compare", "--env", "CartPole-v1", *options]) == code
    assert words in "".join(capfd.readouterr())


COUNTING = ("--env", "registered_envs:Counting-v0", "--num-envs", "4", "--window-s", "0.02", "--ranks", "2")


@pytest.mark.any_mpi
@pytest.mark.mpi(2)
def test_the_command_measures_all_that_apply_and_prints_their_samples(job: Job):
    result = job(None, "compare", *COUNTING, "--repeats", "1", "--systems", "bare-all,mpi", "--json")
    assert result.code == 0, result.err
    found = json.loads(result.out)
    assert {"cpu_model", "num_cores", "versions", "host", "started"} <= found.keys()
    taken = sorted((sample["system"], sample["repeat"]) for sample in found["samples"])
    assert taken == [("bare", 0), ("bare-all", 0), ("mpi", 0)]
    assert all(sample["turn"]["env_steps"] > 0 and sample["turn"]["seconds"] > 0 for sample in found["samples"])
    assert are_gone(job.folder) and not list(job.folder.iterdir())


@pytest.mark.any_mpi
@pytest.mark.mpi(2)
def test_a_system_that_fails_is_told_and_the_others_are_measured(job: Job):
    arguments = ["--num-envs", "2", "--window-s", "0.02", "--repeats", "2", "--ranks", "2", "--systems", "mpi"]
    result = job(None, "compare", "--env", "registered_envs:FailingOnRank1-v0", *arguments)
    assert result.code == 70 and result.messages[-1] == "mpi failed; the others were measured"
    assert "the simulator has diverged" in " ".join(result.messages) and "bare loop, 1 core" in result.out
    assert are_gone(job.folder)
