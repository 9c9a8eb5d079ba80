"""What the last slots of some lanes hold for a trainer: which envs they have, and what these said."""

from collections.abc import Mapping, Sequence

import numpy as np
from gymnasium import spaces

from mpi_rollout.core.spaces import Tree, tree_of
from mpi_rollout.drive.driver import Lane
from mpi_rollout.envs.inputs import Info
from mpi_rollout.exchange.infos import (
    ENV_ERROR,
    FINAL_INFO,
    FINAL_OBS,
    RankInfos,
    add_columns,
    divide,
    infos_of_each,
    merge_infos,
)

EVERYTHING = slice(None)


def indices_of(lanes: Sequence[Lane]) -> np.ndarray:
    """Return the env indices of some lanes."""
    if len(lanes) == 1:
        return lanes[0].env_indices
    return np.concatenate([lane.env_indices for lane in lanes])


def parts_of(lanes: Sequence[Lane]) -> list[tuple[Lane, slice]]:
    """Return where in arrays of all their envs the envs of each lane are."""
    if len(lanes) == 1:
        return [(lanes[0], EVERYTHING)]
    stops = np.cumsum([lane.num_envs for lane in lanes]).tolist()
    return [(lane, slice(stop - lane.num_envs, stop)) for lane, stop in zip(lanes, stops, strict=True)]


class StepInfos:
    """The infos of one step of some lanes, as they came: `parts` of each rank, and the `columns` of typed infos."""

    def __init__(self, num_envs: int):
        self.num_envs, self.parts, self.columns = num_envs, list[tuple[slice, RankInfos]](), Info()

    def merged(self) -> Info:
        """Return one dict of all envs, as Gymnasium has it.

        DataError if what envs say does not fit into one dict.
        """
        return merge_infos(self.num_envs, self.parts) | self.columns

    def failures(self) -> dict[int, str]:
        """Return why single envs were restarted, by row; where that ended an episode, its last info says it."""
        return {
            rows.start + row: str(told[ENV_ERROR])
            for rows, infos in self.parts
            if not isinstance(infos, dict)  # Natively vectorized envs are not restarted.
            for row, info in infos
            for told in (info, info.get(FINAL_INFO))
            if isinstance(told, dict) and ENV_ERROR in told
        }

    def of_each(self) -> list[Info]:
        """Return the dict of each env."""
        of_each = infos_of_each(self.num_envs, self.parts)
        divide(self.columns, of_each)
        return of_each

    def final_observations(self) -> dict[int, Tree]:
        """Return last observations that envs gave in other types than those of their space, by row."""
        finals: dict[int, Tree] = {}
        for rows, infos in self.parts:
            if not isinstance(infos, dict):
                finals |= {rows.start + row: info[FINAL_OBS] for row, info in infos if FINAL_OBS in info}
            elif FINAL_OBS in infos:
                has_final = np.flatnonzero(infos.get(f"_{FINAL_OBS}", ()))
                finals |= {rows.start + row: infos[FINAL_OBS][row] for row in has_final.tolist()}
        return finals


def infos_of(lanes: Sequence[Lane], num_steps: int = 1) -> list[StepInfos]:
    """Take the infos that came with the last slots of some lanes, of each step; nothing where no env said anything.

    DataError if they cannot be read here.
    """
    taken = [lane.exchange.infos.take() for lane in lanes]
    columns = lanes[0].exchange.layout.infos
    if not columns and not any(taken):  # The usual case.
        return []
    steps = [StepInfos(sum(lane.num_envs for lane in lanes)) for _ in range(num_steps)]
    start = 0
    for lane, of_lane in zip(lanes, taken, strict=True):
        for row, envs, infos in of_lane:
            steps[row].parts.append((slice(start + envs.start, start + envs.stop), infos))
        start += lane.num_envs
    for index, leaf in enumerate(columns):
        pairs = [(lane.exchange, lane.exchange.columns.info_arrays[index]) for lane in lanes]
        for row in range(num_steps):
            values, mask = (
                np.concatenate([exchange.take(pair[i], step=row) for exchange, pair in pairs]) for i in (0, 1)
            )
            add_columns(steps[row].columns, leaf, values, mask)
    return steps


def lanes_of(lanes: Sequence[Lane], lane_of_env: np.ndarray, env_indices: np.ndarray | slice) -> list[Lane]:
    """Return the lanes of these envs, whole and in env order; `lane_of_env` has the place of each env's lane."""
    indices = np.arange(len(lane_of_env))[env_indices] if isinstance(env_indices, slice) else np.asarray(env_indices)
    try:
        chosen = [lanes[place] for place in dict.fromkeys(lane_of_env[indices].tolist())]
        if np.array_equal(indices_of(chosen), indices):
            return chosen
    except (IndexError, ValueError, TypeError):
        pass
    raise ValueError(f"envs_slice must be what recv returned, got {env_indices!r}; or None for all envs")


def final_observations(
    space: spaces.Space, lanes: Sequence[Lane], ended: np.ndarray, given: Mapping[int, Tree], step: int = 0
) -> np.ndarray:
    """Return the last observation of each env that ended, else None: an array of objects, as Gymnasium has it.

    They come from this step of the slots, or as the env gave them where `given` has them, by row.
    """
    observations, start = np.full(len(ended), None, object), 0
    for lane in lanes:
        rows = np.flatnonzero(ended[start : start + lane.num_envs])
        arrays = [lane.exchange.take(column, rows, step) for column in lane.exchange.columns.final_observation_arrays]
        for place, row in enumerate((rows + start).tolist()):
            observations[row] = given[row] if row in given else tree_of(space, [array[place] for array in arrays])
        start += lane.num_envs
    return observations
