"""A run of envs with several agents as one agent has seen it: the data of a run of envs with one agent."""

import json

import numpy as np

from mpi_rollout.core.spaces import Leaf
from mpi_rollout.data.reading import ordered
from mpi_rollout.errors import UsageError
from mpi_rollout.storage.agent_episodes import agent_episodes, agent_steps, within
from mpi_rollout.storage.schema import agents_in
from mpi_rollout.storage.stored_run import StoredRun
from mpi_rollout.storage.untrusted import parsed

TRUNCATIONS = "truncations"


class AgentRun(StoredRun):
    """What a run has written of one agent: its columns under the names of an env's own, and its episodes.

    An episode of an agent is a run of neighbouring steps in which it acts, see `storage.agent_episodes`.  Extras are
    those of the env.

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
        """Take the columns of the agent, and what is the env's own besides; the agent's stand before others."""
        agents, of_agent = agents_in(self.attributes), dict[str, str]()
        for name in leaves:
            group, _, rest = name.partition("/")
            who, _, inner = rest.partition("/")
            if group == "extras" or (group == "infos" and who not in agents):
                self._stored_names[name] = name
            elif who == self._agent and group != "alive":
                of_agent[f"{group}/{inner}".rstrip("/")] = name
        self._stored_names |= of_agent
        self.leaves = {own: leaves[name] for own, name in self._stored_names.items()}
        self.chunks = {own: self.chunks[name] for own, name in self._stored_names.items()}

    def stored_name(self, name: str) -> str:
        return self._stored_names.get(name, name)

    def _take_episodes(self) -> None:
        """Make the rows of its episodes; what the file says outside of all episodes of envs is not looked at."""
        num_steps, envs = self.num_steps, slice(0, self.config.num_envs)
        of_envs = np.concatenate([super().ended, super().unfinished()])

        def read(name: str, start: int, stop: int) -> np.ndarray:
            return super(AgentRun, self).read(name, slice(start, stop), envs)

        rows = agent_episodes(agent_steps(read, self._agent, num_steps, envs.stop), envs.stop)
        around, is_inside = within(rows, of_envs, num_steps)
        rows, around = rows[is_inside], around[is_inside]
        rows["seed"] = around["seed"]
        rows["faulted"] = around["faulted"] & (_stop(rows) == _stop(around))
        self.episodes = ordered(rows)

    def read(self, name: str, rows: slice | np.ndarray, envs: slice, into: np.ndarray | None = None) -> np.ndarray:
        """Read as a `StoredRun` does; `truncations` say where the agent's episodes are truncated, as their rows do."""
        if name != TRUNCATIONS:
            return super().read(name, rows, envs, into)
        if isinstance(rows, np.ndarray):
            first, stop = (int(rows.min()), int(rows.max()) + 1) if len(rows) else (0, 0)
            return self.read(name, slice(first, stop), envs)[rows - first]
        array = super().read(name, rows, envs, into)
        first, stop = np.searchsorted(_stop(self.episodes), (rows.start + 1, rows.stop + 1))
        ended = self.episodes[first:stop]
        ended = ended[ended["truncated"] & (ended["env_index"] >= envs.start) & (ended["env_index"] < envs.stop)]
        array.view(np.bool_)[_stop(ended) - 1 - rows.start, ended["env_index"] - envs.start] = True
        return array

    def unfinished(self) -> np.ndarray:
        return np.asarray(self.episodes[~(self.episodes["terminated"] | self.episodes["truncated"])])


def _stop(rows: np.ndarray) -> np.ndarray:
    """Return the step after the last one of each episode."""
    return np.asarray(rows["start"] + rows["length"])
