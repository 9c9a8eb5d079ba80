"""`compare` steps the same envs in every system, counts env steps and nothing else, and names the fastest."""

import json
from itertools import count, islice

import numpy as np
import pytest
from jobs import Job, are_gone

from mpi_rollout.cli import main
from mpi_rollout.envs import bare as bare_loops
from mpi_rollout.errors import UsageError
from mpi_rollout.studies import compare
from mpi_rollout.studies.compare import Sample, Setup, System, lines, systems_of

NUM_ENVS, SWEEPS = 6, 41
LENGTHS = 3 + np.arange(NUM_ENVS) % 5  # Of the episodes of `envs.Counting`, seeded with 0, 1, ...
NUM_RESETS = int(((SWEEPS + 1) // (LENGTHS + 1)).sum())  # Where the row after an end resets.


def setup_of(env: str, num_envs: int = NUM_ENVS, **kwargs) -> Setup:
    return Setup({"env": env, "env_factory": None, "env_kwargs": kwargs}, num_envs, num_cores=2)


@pytest.mark.parametrize("name", ["sync", "async_", "mpi", "bare", "sb3_dummy", "sb3_subproc"])
def test_rows_that_only_reset_are_not_counted(name: str, monkeypatch: pytest.MonkeyPatch):
    """A second passes with each look at the clock, after a step of all envs."""
    if name.startswith("sb3"):
        pytest.importorskip("stable_baselines3")
    num_resets = NUM_RESETS if name in ("sync", "async_", "mpi") else 0
    with getattr(compare, name)(setup_of("registered_envs:Counting-v0")) as measure_for:
        for module in (compare, bare_loops):
            monkeypatch.setattr(module, "perf_counter", map(float, count()).__next__)
        assert measure_for(SWEEPS) == (SWEEPS * NUM_ENVS - num_resets) / SWEEPS


def test_a_bare_loop_gives_later_resets_no_seed_as_other_systems_do():
    assert [*islice(setup_of("CartPole-v1").maker().seeds(0, 1), 1, 3)] == [None, None]


def test_envpool_is_stepped_with_a_thread_for_each_core():
    pytest.importorskip("envpool")
    with compare.envpool(setup_of("CartPole-v1")) as measure_for:
        assert measure_for(0.01) > 0


def samples_of(**rates: tuple[int, ...]) -> list[Sample]:
    """Made up samples, and one that failed."""
    samples = [Sample(name, number, rate) for name in rates for number, rate in enumerate(rates[name])]
    return [*samples, Sample("sync", 3, 0.0, "exit code 70")]


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
    assert compare.envpool_id(setup_of(env, **kwargs)) == name


def test_systems_that_do_not_apply_say_why():
    reasons = {system.name: system.reason_to_skip(setup_of("Mine-v0", 1)) for system in systems_of(2, 2)}
    assert reasons["bare"] == reasons["sync"] == "" and reasons["mpi"] == "1 env for 2 processes"
    assert set(reasons) == set(compare.NAMES.split(", "))


def test_a_system_that_is_not_there_is_refused_and_the_bare_loop_is_always_measured():
    with pytest.raises(UsageError, match="--systems: there is no gym; there are bare, bare-all, mpi, sync"):
        compare.chosen("sync,gym", systems_of(2, 2))
    assert [system.name for system in compare.chosen(" sync, ", systems_of(2, 2))] == ["bare", "sync"]


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
    assert all(sample["env_steps_per_s"] > 0 and not sample["error"] for sample in found["samples"])
    assert are_gone(job.folder) and not list(job.folder.iterdir())


@pytest.mark.any_mpi
@pytest.mark.mpi(2)
def test_a_system_that_fails_is_told_and_the_others_are_measured(job: Job):
    arguments = ["--num-envs", "2", "--window-s", "0.02", "--repeats", "2", "--ranks", "2", "--systems", "mpi"]
    result = job(None, "compare", "--env", "registered_envs:FailingOnRank1-v0", *arguments)
    assert result.code == 70 and result.messages[-1] == "mpi failed; the others were measured"
    assert "the simulator has diverged" in " ".join(result.messages) and "bare loop, 1 core" in result.out
    assert are_gone(job.folder)
