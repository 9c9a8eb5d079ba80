"""EnvPool's tasks of several players, as vector envs whose agents are the players."""

from typing import Any

import numpy as np
from gymnasium.vector import VectorEnv

from mpi_rollout.core.layout import Columns
from mpi_rollout.core.spaces import AgentsSpace, Tree, leaves, set_spaces, tree_of
from mpi_rollout.envs.inputs import Info, OptionsOfOne, Reset, Step
from mpi_rollout.errors import DataError, UsageError

OF_EACH, OF_ONE = "players.action", "action"  # The names of actions in a pool: of all players, or of one.


class PlayersVectorEnv(VectorEnv):
    """What `envpool.make_gymnasium` returned for a task of several players.  Its agents are player_0, player_1, ...

    Seen with EnvPool 1.2.5: a pool reports all players of all envs in each step, those of an env one after the other.
    The envs are in any order if the pool has several threads.  All players of an env end together, and all act until
    then.  Driving tasks take an action of each player.  Games take that of `current_player` alone.

    Attributes
    ----------
    turns_info
        The name of the info that says whose action the pool takes; None if it takes those of all players.
    """

    def __init__(self, pool: Any) -> None:
        self._pool = pool
        self.metadata, self.spec, self.render_mode = pool.metadata, None, None
        self.agent_names = agents = [f"player_{place}" for place in range(pool.spec.config.max_num_players)]
        spaces = (AgentsSpace(dict.fromkeys(agents, space)) for space in (pool.observation_space, pool.action_space))
        set_spaces(self, pool.num_envs, *spaces)
        self._space, self._leaves = pool.observation_space, leaves(pool.observation_space)
        self._env_ids = np.arange(self.num_envs, dtype=np.int32)
        self._player_ids = self._env_ids.repeat(len(agents))
        action_spec = pool.spec.action_array_spec
        self._action_name = OF_EACH if OF_EACH in action_spec else OF_ONE
        self.turns_info = None if self._action_name == OF_EACH else "current_player"
        if self.turns_info and not {OF_ONE, f"info:{self.turns_info}"} <= {*action_spec, *pool.spec.state_array_spec}:
            raise UsageError(
                f"its pool must take {OF_EACH}, or {OF_ONE} with an info {self.turns_info}; got {[*action_spec]}"
            )
        self._action_dtype = action_spec[self._action_name].dtype
        turns = [] if self.turns_info is None else ["info:env_id", f"info:{self.turns_info}"]
        self._turns_at = [pool._state_keys.index(name) for name in turns]

    def reset(self, *, seed: object = None, options: OptionsOfOne = None) -> Reset:
        """Begin episodes; the seeds are those of the pool."""
        observations, infos = self._pool.reset()
        self._turns = infos["env_id"], infos.get(self.turns_info)
        none = np.zeros(self.num_envs, np.bool_)
        observations, *_, infos = self._by_player(observations, np.zeros(len(self._player_ids)), none, none, infos)
        return observations, infos

    def step(self, actions: Tree) -> Step:
        self.send(actions)
        return self.outcome(self.recv())

    def send(self, actions: Tree) -> None:
        """Hand on the actions of all players, or of those whose turn it is."""
        chosen = np.stack([actions[agent] for agent in self.agent_names], axis=1).astype(self._action_dtype)
        if self.turns_info is None:
            self._pool._send([self._env_ids, self._player_ids, chosen.reshape(-1, *chosen.shape[2:])])
        else:
            env_ids, turns = self._turns  # In the pool's order.
            self._pool._send([env_ids, env_ids, chosen[env_ids, turns]])

    def recv(self) -> list[np.ndarray]:
        states: list[np.ndarray] = self._pool._recv()
        if self.turns_info is not None:
            self._turns = tuple(states[place] for place in self._turns_at)
        return states

    def outcome(self, states: list[np.ndarray]) -> Step:
        return self._by_player(*self._pool._to(states, False, True))

    def _by_player(
        self, observations: Tree, rewards: np.ndarray, terminations: np.ndarray, truncations: np.ndarray, infos: Info
    ) -> Step:
        """Return what a pool reported, in the order of envs and by player; the env's reward is the sum of theirs."""
        env_ids, shape = infos["env_id"], (self.num_envs, len(self.agent_names))
        order = None if env_ids.tobytes() == self._env_ids.tobytes() else np.argsort(env_ids)
        expected = self._player_ids if order is None else env_ids.repeat(shape[1])
        if infos["players"]["env_id"].tobytes() != expected.tobytes():  # All are int32: np.array_equal takes 3 us more.
            got = f"got {infos['players']['env_id']!r:.80}"
            raise DataError(f"a pool must report all {shape[1]} players of each env in each step, {got}")

        def by_env(array: np.ndarray) -> np.ndarray:
            return array if order is None else array[order]

        def by_place(array: np.ndarray) -> np.ndarray:
            return by_env(array.reshape(*shape, *array.shape[1:]))

        # What is MultiBinary comes as bools.
        arrays = [by_place(leaf.of(observations).astype(leaf.dtype, copy=False)) for leaf in self._leaves]
        own = by_place(rewards).T.astype(np.float64)
        terminations, truncations = by_env(terminations), by_env(truncations)
        self._outcomes = [*own, *[terminations] * shape[1], *[truncations] * shape[1]]
        self._alive = ~(terminations | truncations)
        infos = {
            name: {key: by_place(array) for key, array in value.items()} if name == "players" else by_env(value)
            for name, value in infos.items()
        }
        by_agent = {
            agent: tree_of(self._space, [array[:, place] for array in arrays])
            for place, agent in enumerate(self.agent_names)
        }
        return by_agent, sum(own), terminations, truncations, infos  # type: ignore[return-value]

    def write_agents(self, columns: Columns) -> None:
        """Write what the last step or reset gave into the players' own columns."""
        for column, values in zip(columns.agent_results, self._outcomes, strict=True):
            column[...] = values
        for column in columns.alive_arrays:
            column[...] = self._alive

    def close(self, **_kwargs: object) -> None:
        self._pool.close()
