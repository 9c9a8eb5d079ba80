"""EnvPool's tasks of several players: what a pool reports, by player and in the order of envs."""

from collections.abc import Callable
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mpi_rollout.core.layout import Contents, SlotLayout
from mpi_rollout.core.spaces import agents_of
from mpi_rollout.envs.env_maker import EnvMaker
from mpi_rollout.envs.players import PlayersVectorEnv
from mpi_rollout.errors import DataError, UsageError

pytestmark = pytest.mark.skipif(find_spec("envpool") is None, reason="pip install 'mpi_rollout[envpool]'")
NUM_ENVS, NUM_STEPS = 6, 40
TASKS = ["IntersectionMultiAgent-v0", "TicTacToe-v1", "KuhnPoker-v1", "Go9x9-v1"]


class Changed:
    """A pool whose reports are changed."""

    def __init__(self, pool: Any, change: Callable[[np.ndarray], np.ndarray]):
        self._pool, self._change = pool, change

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pool, name)

    def reset(self):
        return tuple(map(self._changed, self._pool.reset()))

    def _recv(self):
        return [self._changed(part) for part in self._pool._recv()]

    def _changed(self, part: Any) -> Any:
        if isinstance(part, dict):
            return {name: self._changed(value) for name, value in part.items()}
        return self._change(part)


def reverse(rows: np.ndarray) -> np.ndarray:
    """Reverse the order of the envs, and leave that of an env's players."""
    return rows.reshape(NUM_ENVS, -1, *rows.shape[1:])[::-1].reshape(rows.shape)


def made(task: str) -> Any:
    import envpool

    return envpool.make_gymnasium(task, num_envs=NUM_ENVS, seed=list(range(NUM_ENVS)), num_threads=1)


def actions_of(envs: PlayersVectorEnv) -> list[dict[str, np.ndarray]]:
    draw, most = np.random.default_rng(0), envs.single_action_space["player_0"].n
    return [{name: draw.integers(0, most, NUM_ENVS) for name in envs.agent_names} for _ in range(NUM_STEPS)]


@pytest.mark.parametrize("is_reversed", [False, True])
@pytest.mark.parametrize("task", TASKS)
def test_players_are_the_rows_of_a_pool_that_is_stepped_by_hand(task: str, is_reversed: bool):
    """With several threads a pool reports envs in any order; here they are in their own."""
    envs, pool = PlayersVectorEnv(Changed(made(task), reverse) if is_reversed else made(task)), made(task)
    (seen, infos), (rows, reported) = envs.reset(), pool.reset()
    env_ids = np.arange(NUM_ENVS, dtype=np.int32)
    for actions in actions_of(envs):
        assert [*seen] == ["player_0", "player_1"] == [*agents_of(envs.single_observation_space)]
        for place, player in enumerate(seen):
            assert seen[player].tobytes() == rows[place::2].tobytes()
        assert infos["players"]["env_id"].tolist() == [[index, index] for index in env_ids]
        if task.startswith("Intersection"):
            both = np.stack([*actions.values()], axis=1).ravel().astype(np.int32)
            outcome = pool.step({"players.action": both, "env_id": env_ids, "players.env_id": env_ids.repeat(2)})
        else:
            assert infos["current_player"].tobytes() == reported["current_player"].tobytes()
            chosen = np.where(reported["current_player"] == 0, actions["player_0"], actions["player_1"])
            outcome = pool.step(chosen.astype(np.int32), env_ids)
        rows, rewards, *ends, reported = outcome
        seen, total, *ends_here, infos = envs.step(actions)
        assert total.tobytes() == (rewards[0::2].astype(float) + rewards[1::2]).tobytes()
        assert all(mine.tobytes() == given.tobytes() for mine, given in zip(ends_here, ends, strict=True))


def test_a_player_whose_turn_it_is_loses_by_a_move_that_is_not_allowed():
    """So row i of an env is player i, and `current_player` names a row."""
    envs = PlayersVectorEnv(made("TicTacToe-v1"))
    layout = SlotLayout(Contents(envs.single_observation_space, envs.single_action_space), NUM_ENVS)
    columns = layout.columns(np.zeros(layout.nbytes, np.uint8), NUM_ENVS)
    same = dict.fromkeys(envs.agent_names, np.zeros(NUM_ENVS, np.int64))
    envs.reset()
    *_, infos = envs.step(same)
    turns = infos["current_player"].copy()
    assert set(turns) == {0, 1}
    _, total, terminations, truncations, _ = envs.step(same)
    envs.write_agents(columns)
    first, second, *ends = columns.agent_results
    assert first.tolist() == [-1 if turn == 0 else 1 for turn in turns] == [-reward for reward in second.tolist()]
    assert not total.any() and terminations.all() and not truncations.any()
    assert [flags.all() for flags in ends] == [True, True, False, False]
    assert not any(alive.any() for alive in columns.observation_arrays[-2:])
    *_, terminations, _, _ = envs.step(same)
    envs.write_agents(columns)
    assert not terminations.any() and all(alive.all() for alive in columns.observation_arrays[-2:])


def test_players_that_are_left_out_are_refused():
    with pytest.raises(DataError, match=r"must report all 2 players of each env in each step, got array\(\[0, 0, 1"):
        PlayersVectorEnv(Changed(made("TicTacToe-v1"), lambda rows: rows[:-1])).reset()


def test_tasks_whose_turns_nobody_tells_are_refused(monkeypatch: pytest.MonkeyPatch):
    pool = made("TicTacToe-v1")
    spec = SimpleNamespace(config=pool.spec.config, action_array_spec=pool.spec.action_array_spec, state_array_spec={})
    monkeypatch.setattr("envpool.make_gymnasium", lambda *_args, **_options: SimpleNamespace(spec=spec, **of(pool)))
    with pytest.raises(UsageError, match=r"TicTacToe-v1: its pool must take .* an info current_player; got"):
        EnvMaker("TicTacToe-v1", vectorization_mode="envpool").native(range(2))


def of(pool: Any) -> dict[str, Any]:
    return {name: getattr(pool, name) for name in ("num_envs", "observation_space", "action_space", "metadata")}


def test_they_are_made_by_their_id():
    envs = EnvMaker("TicTacToe-v1", vectorization_mode="envpool").native(range(2))
    assert agents_of(envs.single_observation_space) == ("player_0", "player_1")
