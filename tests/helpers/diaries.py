"""What a trainer saw, episode by episode, beside what its recording says."""

from pathlib import Path
from typing import Any

import h5py
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv

import mpi_rollout
from mpi_rollout.core.spaces import leaves
from mpi_rollout.errors import Option
from mpi_rollout.process.paths import load_callable

Episode = dict[str, Any]


class Diary:
    """Takes steps of envs, and writes down each env's episodes as a trainer sees them."""

    def __init__(self, envs: VectorEnv, seed: int = 0):
        self.envs, self.mode = envs, envs.metadata["autoreset_mode"]
        self._leaves, self._rng = leaves(envs.single_observation_space), np.random.default_rng(seed)
        self._action_leaves = leaves(envs.single_action_space)
        self.episodes: list[list[Episode]] = [[] for _ in range(envs.num_envs)]
        self.ended = np.zeros(envs.num_envs, bool)
        envs.action_space.seed(seed)

    def reset(self, **options: Any) -> None:
        observations, _ = self.envs.reset(**options)
        mask = (options.get("options") or {}).get("reset_mask", np.ones(self.envs.num_envs, bool))
        seed = options.get("seed")
        for env in np.flatnonzero(mask).tolist():
            if self.episodes[env] and not self.ended[env]:
                self.episodes[env][-1]["truncated"] = True
            self._begin(env, observations, env, -1 if seed is None else seed + env)
        self.ended[mask] = False

    def _begin(self, env: int, observations: Any, row: int, seed: int = -1) -> None:
        if self.episodes[env] and not self.episodes[env][-1]["rewards"]:
            self.episodes[env].pop()
        self._add_episode(env, [np.array(leaf.of(observations)[row]) for leaf in self._leaves], seed)

    def _add_episode(self, env: int, first: list[np.ndarray], seed: int = -1) -> None:
        empty: Episode = {"observations": [first], "actions": [], "rewards": []}
        self.episodes[env].append({**empty, "terminated": False, "truncated": False, "seed": seed})

    def steps(self, number: int) -> None:
        for _ in range(number):
            actions = self.envs.action_space.sample()
            self.note(np.arange(self.envs.num_envs), actions, *self.envs.step(actions))

    def collect(self, number: int, **options: Any) -> None:
        batch = self.envs.collect(number, **options)
        after = [
            np.concatenate([leaf.of(batch["observations"])[1:], leaf.of(batch["last_observations"])[None]])
            for leaf in self._leaves
        ]
        for step in range(number):
            for env in range(self.envs.num_envs):
                outcome = (batch[name][step, env] for name in ("rewards", "terminations", "truncations"))
                actions = [leaf.of(batch["actions"])[step, env] for leaf in self._action_leaves]
                self._note(env, env, [array[step, env] for array in after], actions, *outcome, batch["infos"][step])

    def note(self, indices: np.ndarray, actions: Any, observations: Any, *outcome: Any) -> None:
        *results, infos = outcome
        for row, env in enumerate(indices.tolist()):
            given = [leaf.of(actions)[row] for leaf in self._action_leaves]
            seen = [leaf.of(observations)[row] for leaf in self._leaves]
            self._note(env, row, seen, given, *(result[row] for result in results), infos)

    def _note(self, env: int, row: int, seen: Any, actions: Any, reward: Any, end: Any, cut: Any, infos: Any) -> None:
        was_ended, self.ended[env] = self.ended[env], end or cut
        seen = [np.array(array) for array in seen]
        if was_ended and self.mode == AutoresetMode.NEXT_STEP:
            self._add_episode(env, seen)
            return
        episode = self.episodes[env][-1]
        episode["actions"].append([np.array(action) for action in actions])
        episode["rewards"].append(reward)
        episode["terminated"], episode["truncated"] = bool(end), bool(cut)
        if self.ended[env] and self.mode == AutoresetMode.SAME_STEP:
            final = infos["final_obs"][row]
            episode["observations"].append([np.array(leaf.of(final)) for leaf in self._leaves])
            self.ended[env] = False
            self._add_episode(env, seen)
        else:
            episode["observations"].append(seen)

    def told(self) -> list[list[Episode]]:
        """Return the episodes of each env that have a step."""
        return [[episode for episode in episodes if episode["rewards"]] for episodes in self.episodes]


def recorded(path: Path) -> list[list[Episode]]:
    """Read each env's episodes from a recording, as docs/reference/file-format.md says."""
    with h5py.File(path) as file:
        rows = np.sort(file["episodes"][...], order=["env_index", "start"])
        told: list[list[Episode]] = [[] for _ in range(file.attrs["num_envs"])]
        trajectories = file["trajectories"]
        groups = {name: arrays_of(trajectories[name]) for name in ("observations", "actions", "final_observations")}
        rewards = trajectories["rewards"][...]
        for row in rows:
            env, start, stop = row["env_index"], row["start"], row["start"] + row["length"]
            seen = [[array[step, env] for array in groups["observations"]] for step in range(start, stop)]
            has_ended = row["terminated"] or row["truncated"]
            last = (groups["final_observations"], stop - 1) if has_ended else (groups["observations"], stop)
            seen.append([array[last[1], env] for array in last[0]])
            episode: Episode = {"observations": seen, "rewards": list(rewards[start:stop, env])}
            episode["actions"] = [[array[step, env] for array in groups["actions"]] for step in range(start, stop)]
            told[env].append(episode | {name: row[name].item() for name in ("terminated", "truncated", "seed")})
        return told


def arrays_of(item: h5py.Dataset | h5py.Group) -> list[np.ndarray]:
    if isinstance(item, h5py.Dataset):
        return [item[...]]
    return [array for name in item for array in arrays_of(item[name])]


def differences(told: list[list[Episode]], stored: list[list[Episode]]) -> list[str]:
    """Say what differs between the diary and the file."""
    found = []
    for env, (mine, others) in enumerate(zip(told, stored, strict=True)):
        if len(mine) != len(others):
            found.append(f"env {env}: {len(mine)} episodes, stored {len(others)}")
        for number, (one, other) in enumerate(zip(mine, others, strict=False)):
            for name in one:
                if not _same(one[name], other[name]):
                    found.append(f"env {env}, episode {number}: {name} {one[name]}, stored {other[name]}")
    return found


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, list):
        return len(one) == len(other) and all(map(_same, one, other))
    return np.asarray(one).tobytes() == np.asarray(other).tobytes() if isinstance(one, np.ndarray) else one == other


def keep_diary(env: str, num_envs: int, path: str, options: dict[str, Any]) -> list[list[Episode]] | None:
    """Train a while with all that a trainer may do; return what it saw.  **Collective**."""
    make = load_callable(env, Option("env")) if ":" in env else env
    with mpi_rollout.connect(make, num_envs, record=path, **options) as envs:
        return None if envs is None else _kept(envs, options)


def _kept(envs: Any, options: dict[str, Any]) -> list[list[Episode]]:
    diary, has_autoreset = Diary(envs), envs.autoreset_mode != AutoresetMode.DISABLED
    diary.reset(seed=5)
    diary.reset(seed=7)
    some = np.arange(envs.num_envs) % 3 == 1
    if "num_groups" in options or "batch_size" in options:
        _serve(diary, 300)
        return diary.told()
    for number in range(40):
        diary.steps(1)
        if number == 12:
            diary.reset()
            diary.reset(seed=11)
        if number in (20, 21, 33):
            diary.reset(options={"reset_mask": some})
        if not has_autoreset and diary.ended.any():
            diary.reset(options={"reset_mask": diary.ended.copy()})
    diary.reset(seed=3)
    diary.collect(2 if not has_autoreset else 33)
    if has_autoreset:
        diary.steps(3)
        diary.collect(1)
    else:
        diary.reset()
        diary.steps(1)
    return diary.told()


def _serve(diary: Diary, number: int) -> None:
    """Take steps of the envs that come first."""
    envs = diary.envs
    envs.send(actions := envs.action_space.sample())
    sent = dict(enumerate(actions))
    for _ in range(number):
        *outcome, indices = envs.recv()
        diary.note(indices, np.array([sent[index] for index in indices.tolist()]), *outcome)
        again = envs.action_space.sample()[indices]
        sent.update(zip(indices.tolist(), again, strict=True))
        envs.send(again, indices)
