"""A `MPIVectorEnv` as Stable-Baselines3 wants its envs: what its DummyVecEnv does, on all ranks.

    with mpi_rollout.connect("CartPole-v1", num_envs=64, autoreset_mode="same_step") as envs:
        if envs is not None:
            from mpi_rollout.sb3 import MPIVecEnv
            PPO("MlpPolicy", VecMonitor(MPIVecEnv(envs))).learn(100_000)

Import it on the root only, as above: Stable-Baselines3 brings PyTorch, which ranks that step envs have no use for.

In one process it can be made as DummyVecEnv is: `MPIVecEnv(env_fns)`, `make_vec_env(..., vec_env_cls=MPIVecEnv)`.

Infos are each env's own dict, with the values that the env gave.  Where it differs from DummyVecEnv: integer actions
outside of their space are refused; `set_attr` sets an attribute where it is among the wrappers, not on the outermost
one.
"""

import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode

from mpi_rollout.core.spaces import Tree
from mpi_rollout.envs.env_maker import EnvFunction
from mpi_rollout.envs.inputs import Info, Step
from mpi_rollout.exchange.infos import FINAL_INFO, FINAL_OBS
from mpi_rollout.text import pip_install
from mpi_rollout.train.agents import AgentRows
from mpi_rollout.train.closing import OfOneJob
from mpi_rollout.train.connect import connect
from mpi_rollout.train.vector_env import MPIVectorEnv

try:
    from stable_baselines3.common.preprocessing import check_for_nested_spaces
    from stable_baselines3.common.vec_env import VecEnv
except ImportError as error:
    raise ImportError(f"mpi_rollout.sb3 needs Stable-Baselines3 ({error}); {pip_install('[sb3]')}") from error

Infos = list[Info]
Indices = None | int | Iterable[int]


class MPIVecEnv(OfOneJob, VecEnv):
    """All ranks' envs for Stable-Baselines3's algorithms and wrappers.

    Parameters
    ----------
    envs
        What `mpi_rollout.connect(..., autoreset_mode="same_step")` gives on the root, or `mpi_rollout.launch` with the
        same argument.  In one process also a list of callables that return one env each; they are connected here.
    agents
        "rows" for envs with several agents, whose spaces are equal: each agent of each env is an env of its own here,
        row i * num_agents + j being agent j of env i.  They come from `connect(..., agents="axis")`.  A row is done
        when its agent leaves; from then until the end of its env's episode it has observations nearest to zero and
        rewards of 0, and is done then once more.  Methods of a row are those of its env.
    options
        For such a list: arguments of `mpi_rollout.connect`.

    Raises
    ------
    TypeError, ValueError
        It is something else, or its envs reset in another way, or it is a list of callables on several ranks.
    NotImplementedError
        Stable-Baselines3 has no use for nested observation spaces.
    """

    def __init__(self, envs: MPIVectorEnv | Sequence[EnvFunction], agents: str | None = None, **options: Any):
        if isinstance(envs, list | tuple):
            envs = connect_alone(envs, options)
        elif not isinstance(envs, MPIVectorEnv):
            raise TypeError(
                f"MPIVecEnv needs the envs that mpi_rollout.connect gives on the root, got {type(envs).__name__}; "
                "other ranks are given None: use it below `if envs is not None:`"
            )
        elif options:
            raise TypeError(f"{', '.join(options)}: give this to mpi_rollout.connect, which has made these envs")
        mode = envs.metadata["autoreset_mode"]
        if mode != AutoresetMode.SAME_STEP:
            raise ValueError(
                "Stable-Baselines3 needs envs that reset in the step in which they end, got autoreset mode "
                f'{mode.value}; connect(..., autoreset_mode="same_step")'
            )
        self._envs, self._rows = envs, rows_of_agents(envs, agents)
        self._per_env = 1 if self._rows is None else len(envs.agents)
        spaces = envs.agent_spaces or (envs.single_observation_space, envs.single_action_space)
        check_for_nested_spaces(spaces[0])
        super().__init__(envs.num_envs * self._per_env, *spaces)
        self.metadata = {name: value for name, value in envs.metadata.items() if name != "autoreset_mode"}

    def reset(self) -> Tree:
        """Start a new episode in every env, with the seeds and options set since the last time."""
        options = [own or None for own in self._options[:: self._per_env]] if any(self._options) else None
        seeds = None if self._seeds == [None] * self.num_envs else list(self._seeds[:: self._per_env])
        reset: Any = self._envs.reset(seed=seeds, options=options, infos_of_each=True)
        observations, infos = reset
        self.reset_infos: Infos = self._by_row(infos or [{} for _ in range(self._envs.num_envs)])
        self._reset_seeds()
        self._reset_options()
        return observations if self._rows is None else self._rows.reset(observations, self._envs.alive)

    def _by_row(self, infos: Infos) -> Infos:
        """Return the info of each row: that of its agent with what its env says besides, or those of the envs."""
        if self._rows is None:
            return infos
        agents, rows = self._envs.agents, []
        for info in infos:
            of_env = {name: value for name, value in info.items() if name not in agents}
            rows += [{**of_env, **info.get(agent, {})} for agent in agents]
        return rows

    def step_async(self, actions: Tree) -> None:
        """Send actions of shape (num_envs, ...), or a tree of such arrays, to the ranks."""
        self._envs.send(actions if self._rows is None else self._rows.actions(actions, self.action_space))

    def step_wait(self) -> tuple[Tree, np.ndarray, np.ndarray, Infos]:
        """Wait until all envs have stepped."""
        outcome: Any = self._envs.recv_all(infos_of_each=True)
        observations, rewards, terminations, truncations, infos = outcome
        infos = infos or [{} for _ in range(self._envs.num_envs)]
        if self._rows is not None:
            return self._step_of_rows(outcome, infos)
        dones, is_cut = terminations | truncations, truncations & ~terminations
        ended = np.flatnonzero(dones).tolist()
        finals = self._take_finals(infos, ended)
        for info, value in zip(infos, is_cut.tolist(), strict=True):
            info["TimeLimit.truncated"] = value
        for env, observation in finals.items():
            infos[env]["terminal_observation"] = observation
        return observations, rewards.astype(np.float32), dones, infos

    def _take_finals(self, infos: Infos, ended: Sequence[int]) -> dict[int, Tree]:
        """Leave the last infos of episodes that ended, and keep those of resets; return last observations by env."""
        finals, per_env = {}, self._per_env
        for env in ended:
            of_reset = infos[env]
            finals[env], infos[env] = of_reset.pop(FINAL_OBS), of_reset.pop(FINAL_INFO, {})
            self.reset_infos[env * per_env : (env + 1) * per_env] = self._by_row([of_reset])
        return finals

    def _step_of_rows(self, outcome: Step, infos: Infos) -> tuple[Tree, np.ndarray, np.ndarray, Infos]:
        assert self._rows is not None
        ended = [env for env, info in enumerate(infos) if FINAL_OBS in info]
        step = self._rows.step(outcome, self._take_finals(infos, ended), self._envs.alive)
        of_rows = self._by_row(infos)
        for info, value in zip(of_rows, step.is_cut.tolist(), strict=True):
            info["TimeLimit.truncated"] = value
        for row, observation in step.final_observations.items():
            of_rows[row]["terminal_observation"] = observation
        return step.observations, step.rewards.astype(np.float32), step.dones, of_rows

    def has_attr(self, attr_name: str) -> bool:
        """Tell whether all envs have the attribute."""
        return all(self._envs.call("has_wrapper_attr", attr_name))

    def get_attr(self, attr_name: str, indices: Indices = None) -> list[Any]:
        """Get an attribute of some envs, wherever in their wrappers it is; pickled."""
        return self._call(indices, "get_wrapper_attr", attr_name)

    def set_attr(self, attr_name: str, value: object, indices: Indices = None) -> None:
        """Set an attribute of some envs to the same value."""
        chosen = self._chosen(indices)
        self._envs.set_some(chosen, attr_name, [value] * len(chosen))

    def env_method(
        self, method_name: str, *method_args: object, indices: Indices = None, **method_kwargs: object
    ) -> list[Any]:
        """Call a method of some envs, once for each; what it returns is pickled."""
        return self._call(indices, method_name, *method_args, **method_kwargs)

    def env_is_wrapped(self, wrapper_class: type, indices: Indices = None) -> list[bool]:
        """Tell for some envs, by name, whether a wrapper of this class, or of one derived from it, is around them."""
        names = names_of(wrapper_class)
        return [any(f"<{name}<" in text for name in names) for text in self._call(indices, "__str__")]

    def _chosen(self, indices: Indices) -> Sequence[int]:
        """Return the envs whose rows are meant by None, an index or indices, which may be negative."""
        return [range(self.num_envs)[index] // self._per_env for index in self._get_indices(indices)]

    def _call(self, indices: Indices, name: str, *args: object, **kwargs: object) -> list[Any]:
        """Call a method of some envs in env order; return what they return in the order of the indices."""
        chosen = self._chosen(indices)
        called = sorted(set(chosen))
        results = dict(zip(called, self._envs.call_some(called, name, *args, **kwargs), strict=True))
        return [results[index] for index in chosen]

    def get_images(self) -> Sequence[np.ndarray | None]:
        """Return the envs' frames; None for each env if they do not draw any."""
        if self.render_mode != "rgb_array":
            warnings.warn(
                f'images need render_mode "rgb_array", got {self.render_mode}; give it to connect in env_kwargs',
                stacklevel=2,
            )
            return [None] * self.num_envs
        return list(self._envs.render())

    def close(self) -> None:
        """Let the other ranks out of `connect`."""
        self._envs.close()


def rows_of_agents(envs: MPIVectorEnv, agents: str | None) -> AgentRows | None:
    """Return the layout of agents as rows, None for envs of one agent; TypeError or ValueError for another `agents`."""
    if agents not in (None, "rows"):
        raise ValueError(f'agents must be "rows" or None, got {agents!r}')
    if not envs.agents and agents is None:
        return None
    if not envs.agents or agents is None:
        what = f"agents {', '.join(envs.agents)}" if envs.agents else "one agent"
        way_out = 'give agents="rows"' if envs.agents else "leave out agents"
        raise TypeError(f"Stable-Baselines3 knows of one agent, these envs have {what}; {way_out}")
    if not envs.agent_spaces:
        raise ValueError('agents="rows" needs agents with equal spaces in one array; connect(..., agents="axis")')
    return AgentRows(envs.agents, envs.num_envs, envs.agent_spaces[0])


def connect_alone(env_fns: Sequence[EnvFunction], options: Mapping[str, Any]) -> MPIVectorEnv:
    """Connect the envs of one process; ValueError if there are several ranks, which would all have to connect."""
    envs = connect(list(env_fns), **{"autoreset_mode": AutoresetMode.SAME_STEP, **options})
    if not isinstance(envs, MPIVectorEnv):
        raise ValueError(
            "MPIVecEnv makes envs in one process only, got several ranks; on all of them use "
            '`with mpi_rollout.connect([...], autoreset_mode="same_step") as envs:` and '
            "there, on the root, MPIVecEnv(envs)"
        )
    return envs


def names_of(kind: type) -> set[str]:
    """Return a class's name, and those of the classes derived from it."""
    return {kind.__name__}.union(*map(names_of, kind.__subclasses__()))
