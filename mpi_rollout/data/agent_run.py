"""A run of envs with several agents as one agent has seen it: the data of a run of envs with one agent."""

import json

import numpy as np

from mpi_rollout.core.columns import RESULTS
from mpi_rollout.core.spaces import Leaf
from mpi_rollout.data.reading import ordered
from mpi_rollout.errors import UsageError
from mpi_rollout.storage.schema import EPISODE, RETURN_OF, agents_in
from mpi_rollout.storage.stored_run import StoredRun
from mpi_rollout.storage.untrusted import parsed


class AgentRun(StoredRun):
    """What a run has written of one agent: its columns under the names of an env's own, and its episodes.

    An episode of an agent is the steps in which it acts, within one of its env.  Extras are those of the env.

    Raises
    ------
    UsageError
        There is no such agent; or a trainer took the steps: where the next episode begins in the step of an end, the
        file does not have the last observation of each agent.
    """

    def __init__(self, path: str, agent: str):
        self._agent, self._stored_names = agent, dict[str, str]()
        super().__init__(path)

    def look(self) -> None:
        super().look()
        agents = agents_in(self.attributes)
        if self._agent not in agents:
            known = f"it has {', '.join(agents)}" if agents else "its envs have one agent; leave this out"
            raise UsageError(f"{self.path} has no agent {self._agent!r}; {known}")
        if self.resets is not None:
            raise UsageError(f"{self.path} is a recording, whose agents have no episodes of their own; read all agents")
        self._take_episodes()
        self._take_names(self.leaves)
        spaces = parsed(self.attributes, "spaces", dict)
        for name in ("observation", "action"):
            spaces[name] = spaces[name]["subspaces"][self._agent]
        self.attributes = {**self.attributes, "spaces": json.dumps(spaces)}

    def _take_names(self, leaves: dict[str, Leaf]) -> None:
        """Take the columns of the agent, and what is the env's own besides."""
        for name in leaves:
            group, _, rest = name.partition("/")
            who, _, inner = rest.partition("/")
            if group == "extras" or (who == self._agent and group != "alive"):
                self._stored_names[name if group == "extras" else f"{group}/{inner}".rstrip("/")] = name
        self.leaves = {own: leaves[name] for own, name in self._stored_names.items()}
        self.chunks = {own: self.chunks[name] for own, name in self._stored_names.items()}

    def stored_name(self, name: str) -> str:
        return self._stored_names.get(name, name)

    def _take_episodes(self) -> None:
        """Make the rows of its episodes: of each env's episode the steps in which the agent acts, if there are any."""
        of_envs, num_steps = np.concatenate([super().ended, super().unfinished()]), self.num_steps
        steps, envs = slice(0, num_steps), slice(0, self.config.num_envs)
        alive = super().read(f"alive/{self._agent}", steps, envs) if num_steps else np.zeros((0, envs.stop), np.bool_)
        acted = np.flatnonzero(alive.T)  # Env after env.
        begin = of_envs["env_index"] * num_steps + of_envs["start"]
        first, behind = (np.searchsorted(acted, place) for place in (begin, begin + of_envs["length"]))
        has_acted = behind > first
        of_envs, first, behind = of_envs[has_acted], first[has_acted], behind[has_acted]
        rows = np.zeros(len(of_envs), EPISODE)
        for name in ("env_index", "seed", "faulted"):
            rows[name] = of_envs[name]
        rows["return"], rows["length"] = of_envs[RETURN_OF + self._agent], behind - first
        rows["start"] = acted[first] - rows["env_index"] * num_steps
        last, (_, *ends) = rows["start"] + rows["length"] - 1, RESULTS
        for name, end in zip(("terminated", "truncated"), ends, strict=True):
            flags = super().read(f"{end.path}/{self._agent}", steps, envs) if num_steps else alive
            rows[name] = flags[last, rows["env_index"]]
        is_cut = (of_envs["terminated"] | of_envs["truncated"]) & ~rows["terminated"] & ~rows["truncated"]
        rows["truncated"] |= is_cut  # The env has ended, and the agent has not.
        rows["faulted"] &= last + 1 == of_envs["start"] + of_envs["length"]
        self.episodes = ordered(rows)

    def unfinished(self) -> np.ndarray:
        return np.asarray(self.episodes[~(self.episodes["terminated"] | self.episodes["truncated"])])
