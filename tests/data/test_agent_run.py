"""One agent's data of a run with several agents: what it saw, did and got while it was alive; exports have it."""

import json
import pickle
import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest
from jobs import Job

import mpi_rollout
from mpi_rollout.errors import DataError, UsageError
from mpi_rollout.storage.schema import digest_of

agents_envs = pytest.importorskip("agents_envs")  # It needs PettingZoo.

pytestmark = pytest.mark.any_mpi


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Job:
    job = Job(tmp_path_factory.mktemp("run"))
    sizes = ("--num-envs", "5", "--num-steps", "60", "--seed", "4")
    job.collect(None, "--env-factory", "agents_envs:Lives", *sizes, out="run.h5")
    shards = ("--storage", "sharded", "--shards-per-node", "2")
    job.collect(2, "--env-factory", "agents_envs:Lives", *sizes, *shards, out="set.h5")
    return job


@pytest.mark.parametrize("file", ["run.h5", "set.h5"])
@pytest.mark.parametrize("agent", agents_envs.NAMES)
def test_an_agents_episodes_are_the_steps_in_which_it_acts(job: Job, file: str, agent: str):
    with mpi_rollout.open(job.folder / "run.h5") as whole, mpi_rollout.open(job.folder / file, agent=agent) as data:
        own = {(int(row["env_index"]), int(row["start"])): row for row in (*data.episodes, *data.unfinished)}
        read = {(e.env_index, e.start): e for e in pickle.loads(pickle.dumps(data)).iter_episodes(unfinished=True)}
        num_transitions = 0
        for episode in whole.iter_episodes(unfinished=True):
            acts = np.flatnonzero(episode.alive[agent][:-1])
            if not len(acts):
                continue
            key = episode.env_index, episode.start + int(acts[0])
            row, found, steps = own.pop(key), read[key], slice(acts[0], acts[-1] + 1)
            num_transitions += len(acts)
            assert row["length"] == len(acts) == len(found)
            assert row["return"] == episode.row[f"return_{agent}"] == sum(found.rewards.tolist())
            assert row["terminated"] == episode.terminations[agent].any() == found.terminations[-1]
            assert row["truncated"] == episode.truncations[agent].any() == found.truncations[-1]
            assert np.array_equal(found.actions, episode.actions[agent][steps])
            seen = found.observations, episode.observations[agent]
            for mine, theirs in zip(*((tree.values() if agent == "late" else [tree]) for tree in seen), strict=True):
                assert np.array_equal(mine, theirs[acts[0] : acts[-1] + 2])
        assert not own and len(data.transitions) == num_transitions > 50
        batch = data.transitions[:]
        assert batch.terminations.sum() == sum(row["terminated"] for row in (*data.episodes, *data.unfinished))


def test_an_agents_data_have_its_infos_and_those_of_the_env_as_a_whole(job: Job):
    infos = ("--store-infos", '{"step": int, "runner/lives": int}')
    job.collect(None, "--env-factory", "agents_envs:even", "--num-envs", "2", "--num-steps", "9", *infos, out="even.h5")
    with mpi_rollout.open(job.folder / "even.h5", agent="runner") as data:
        episode = next(data.iter_episodes(unfinished=True))
        assert {"step", "_step", "lives", "_lives"} == episode.infos.keys()
        assert episode.infos["step"].tolist() == [*range(len(episode) + 1)] and episode.infos["lives"][0] > 1
    with mpi_rollout.open(job.folder / "even.h5", agent="walker") as data:
        assert next(data.iter_episodes(unfinished=True)).infos.keys() == {"step", "_step"}


def walked(path: Path, agent: str) -> list[tuple[int, int, list[float], bool, bool]]:
    """Env, start, rewards and ends of an agent's episodes, from step to step of a file, in the order of their ends."""
    with h5py.File(path) as file:
        columns = file["trajectories"]
        alive, rewards = columns[f"alive/{agent}"][()], columns[f"rewards/{agent}"][()]
        own_ends = [columns[f"{name}/{agent}"][()] for name in ("terminations", "truncations")]
        over = columns["terminations/__all__"][()] | columns["truncations/__all__"][()]
    ended, running = [], dict[int, int]()
    for step, env in np.ndindex(rewards.shape):
        if not alive[step, env]:
            continue
        start = running.setdefault(env, step)
        terminated, truncated = (bool(flags[step, env]) for flags in own_ends)
        if terminated or truncated or over[step, env] or not alive[step + 1, env]:
            own = rewards[running.pop(env) : step + 1, env].tolist()
            ended.append((env, start, own, terminated, truncated or not terminated))
    return ended + [(env, start, rewards[start:, env].tolist(), False, False) for env, start in sorted(running.items())]


@pytest.fixture(scope="module")
def restless(job: Job) -> Path:
    sizes = ("--num-envs", "7", "--num-steps", "90", "--seed", "2")
    return job.collect(2, "--env-factory", "agents_envs:Restless", *sizes, out="restless.h5")


@pytest.mark.parametrize("agent", agents_envs.NAMES)
def test_an_agent_that_pauses_has_an_episode_for_each_run_of_steps(job: Job, restless: Path, agent: str):
    expected = walked(restless, agent)
    assert_are_episodes(restless, agent, expected)
    num_pauses = sum(truncated for *_, truncated in expected)
    assert num_pauses > 30 and len({len(rewards) for _, _, rewards, *_ in expected}) > 3
    assert job(None, "verify", "restless.h5").code == 0


def assert_are_episodes(path: Path, agent: str, expected: list[tuple[int, int, list[float], bool, bool]]) -> None:
    """A file has these episodes of an agent in its table, its columns, its transitions, and when they are read."""
    with mpi_rollout.open(path, agent=agent) as data:
        episodes, truncations = list(data.iter_episodes(unfinished=True)), data.truncations[...]
        rows = [*data.episodes, *data.unfinished]
        batch = data.transitions[:]
        picked = data.truncations[[5, 2, 5]]
    found = [(e.env_index, e.start, e.rewards.tolist(), e.terminated, e.truncated) for e in episodes]
    assert sorted(found) == sorted(expected)
    assert [row["return"] for row in rows] == [sum(rewards) for _, _, rewards, *_ in expected]
    assert all(
        (e.terminations[-1], e.truncations[-1], e.truncations[:-1].any()) == (e.terminated, e.truncated, False)
        for e in episodes
    )
    ends = {(row["start"] + row["length"] - 1, row["env_index"]) for row in rows if row["truncated"]}
    assert ends == {*zip(*np.nonzero(truncations), strict=True)} and (picked == truncations[[5, 2, 5]]).all()
    assert batch.rewards.tolist() == [reward for _, _, rewards, *_ in expected for reward in rewards]
    assert all((e.observations[:, 1] == e.observations[0, 1] + np.arange(len(e) + 1)).all() for e in episodes)


def test_exports_end_each_episode_of_an_agent_that_pauses(job: Job, restless: Path):
    agent, where = "runner", {"MINARI_DATASETS_PATH": "sets"}
    assert job(None, "export", "d4rl", "restless.h5", "restless.d4", "--agent", agent).code == 0
    assert job(None, "export", "minari", "restless.h5", "restless/runner-v0", "--agent", agent, **where).code == 0
    expected = walked(restless, agent)
    by_last_step = sorted(expected, key=lambda it: (it[1] + len(it[2]), it[0]))
    with h5py.File(job.folder / "restless.d4") as file:
        ends = np.flatnonzero(file["terminals"][()] | file["timeouts"][()])
        rewards = [part.tolist() for part in np.split(file["rewards"][()], ends + 1)]
        assert rewards == [*(rewards for _, _, rewards, *_ in by_last_step), []]
    with h5py.File(job.folder / "sets/restless/runner-v0/data/main_data.hdf5") as file:
        assert len(file) == len(expected)
        for number, (_, _, rewards, terminated, truncated) in enumerate(expected):
            group = file[f"episode_{number}"]
            assert group["rewards"][()].tolist() == rewards
            assert group["terminations"][-1] == terminated
            assert group["truncations"][-1] == (truncated or not terminated)


def test_exports_write_the_data_of_one_agent(job: Job, monkeypatch: pytest.MonkeyPatch):
    refused = job(None, "export", "d4rl", "run.h5", "all.h5")
    assert refused.code == 64 and "export each by itself: --agent walker" in refused.messages[0]
    assert job(None, "export", "d4rl", "run.h5", "late.h5", "--agent", "late").code == 0
    data = mpi_rollout.open(job.folder / "run.h5", agent="late")
    with h5py.File(job.folder / "late.h5") as file:
        assert len(file["rewards"]) == data.num_transitions
        assert sum(file["rewards"]) == pytest.approx(data.episodes["return"].sum() + data.unfinished["return"].sum())
    sets = job(None, "export", "minari", "run.h5", "lives/walker-v0", "--agent", "walker", MINARI_DATASETS_PATH="sets")
    assert sets.code == 0, sets.err
    with h5py.File(job.folder / "sets/lives/walker-v0/data/main_data.hdf5") as file:
        walker = mpi_rollout.open(job.folder / "run.h5", agent="walker")
        assert len(file) == len(walker.episodes) + len(walker.unfinished)
        assert file["episode_0/observations"].shape == (len(file["episode_0/rewards"]) + 1, 3)


def test_what_has_no_such_agent_is_refused(job: Job, tmp_path: Path):
    with pytest.raises(UsageError, match="has no agent 'nobody'; it has walker, runner, late"):
        mpi_rollout.open(job.folder / "run.h5", agent="nobody")
    with mpi_rollout.connect(agents_envs.Lives, 2, record=tmp_path / "own.h5") as envs:
        envs.reset(seed=1)
        envs.collect(20)
    with pytest.raises(UsageError, match="is a recording, whose agents have no episodes of their own"):
        mpi_rollout.open(tmp_path / "own.h5", agent="walker")


def test_a_file_whose_agents_are_no_names_is_refused(job: Job):
    shutil.copy(job.folder / "run.h5", job.folder / "crafted.h5")
    with h5py.File(job.folder / "crafted.h5", "r+") as file:
        spaces = json.loads(file.attrs["spaces"])
        parts = list(spaces["observation"]["subspaces"].values())
        spaces["observation"] |= {"subspaces": parts, "agents": parts}
        file.attrs["spaces"] = json.dumps(spaces)
        file.attrs["digest"] = digest_of(file.attrs)
    with pytest.raises(DataError, match="its attribute spaces names no agents"):
        mpi_rollout.open(job.folder / "crafted.h5")
    result = job(None, "verify", "crafted.h5")
    assert (result.code, result.num_tracebacks, len(result.messages)) == (65, 0, 1), result.err
