"""One rank's envs for one exchange: what its orders act on, and its slots are filled by."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.vector import VectorEnv

from mpi_rollout.core.layout import RESULTS, noun
from mpi_rollout.core.seeding import seed_of_slice
from mpi_rollout.core.spaces import Leaf
from mpi_rollout.envs.faults import ABORT, OnFault, OutputChecks
from mpi_rollout.envs.inputs import Options
from mpi_rollout.envs.loop import LoopVectorEnv
from mpi_rollout.envs.infos import MaskColumn
from mpi_rollout.envs.outputs import Casting, misfit
from mpi_rollout.envs.replaying import Past, Restoring
from mpi_rollout.errors import DataError
from mpi_rollout.exchange.exchange import Command, Exchange
from mpi_rollout.exchange.infos import Infos, tell, write_columns
from mpi_rollout.ranks.watchdog import Work


class Slice:
    """The envs of one rank that one exchange is for: what its orders act on and its slots are filled by.

    Parameters
    ----------
    envs
        A `LoopVectorEnv` writes straight into the slot, what others return is copied there.
    infos
        "none", "all" or a mapping, see `infos`.
    heeds_masks
        The envs' action masks go with the slot; there is nothing of `infos` then.

    Attributes
    ----------
    num_steps
        Steps that the envs have taken: the index of the one that they are in, or that a reset comes before.
    """

    def __init__(
        self,
        exchange: Exchange,
        envs: VectorEnv,
        infos: Infos = "none",
        on_fault: OnFault = ABORT,
        heeds_masks: bool = False,
    ):
        self.exchange, self.envs, self.env_indices = exchange, envs, exchange.envs
        self.num_steps = self._num_done = 0
        self._is_loop = isinstance(envs, LoopVectorEnv)
        self._pickles_infos, self._has_none = infos == "all", infos == "none"
        self.has_told = False
        # A loop checks by itself.
        self._checks = None if self._is_loop else OutputChecks(envs.single_observation_space, on_fault)
        self._casting = Casting(on_fault.strict_dtypes)
        self._info_columns = list(zip(exchange.layout.infos, exchange.slot.info_arrays, strict=True))
        self.masks = None
        if heeds_masks:
            column = self._info_columns.pop()[1] if self._info_columns else None
            self.masks = MaskColumn(envs.single_action_space, column, self.env_indices.start)
        if self._is_loop:
            envs.write_to(exchange.slot)
            envs.add_info, envs.infos = tell, self.masks

    def reset(self, seed: Any = None, mask: np.ndarray | None = None, options: Options = None) -> None:
        """Reset the envs, or those of a mask over all envs of the job; `seed` and `options` are for all of them too.

        An int seeds env i with seed + i, as Gymnasium does, and a natively vectorized slice by `seed_of_slice`.
        """
        mine = slice(self.env_indices.start, self.env_indices.stop)
        if isinstance(seed, int):
            each = [seed + index for index in self.env_indices]
            seed = each if self._is_loop else seed_of_slice(seed, self.env_indices)
        elif seed is not None:
            seed = seed[mine]
        if isinstance(options, list):
            options = options[mine]
        if mask is not None:
            options = (options or {}) | {"reset_mask": mask[mine]}
        self._fill(self.envs.reset(seed=seed, options=options))

    def take_faults(self) -> list[tuple[int, str, str]]:
        """Of each env that was made anew since the last slot index, failure and how often it was.

        Where nobody has asked for infos, they go with the slot.
        """
        faults = list(self.envs.faults) if self._is_loop and self.envs.faults else []
        if self._has_none and (faults or self.has_told):
            self.exchange.put_infos({"faults": [fault[:2] for fault in faults]} if faults else {})
            self.has_told = bool(faults)
        if faults:
            self.envs.faults.clear()
        return faults

    def at_work(self) -> Work | None:
        """The call of an env that is under way, or of all of them; for another thread to ask."""
        if not self._is_loop:
            first, last = self.env_indices[0], self.env_indices[-1]
            return Work((id(self), self._num_done), lambda: f"step {self.num_steps}: envs {first} to {last}")
        found = self.envs.at_work()
        if found is None:
            return None
        place, call, patience = found
        return Work((id(self), call), lambda: self._describe(place), patience)

    def _describe(self, place: int) -> str:
        episode = self.envs.episode(place)
        return f"step {self.num_steps}: {self.envs.describe(place)}{f' ({episode})' if episode else ''}"

    def do(self, command: int, arguments: tuple[Any, ...]) -> None:
        """Do what an order says, and fill the slot."""
        self._num_done += 1
        if command == Command.STEP:
            self.step()
        elif command == Command.RESET:
            self.reset(*arguments)
        elif command == Command.RESTORE:
            self.restore(*arguments)
        else:
            self.replay(*arguments)

    def step(self) -> None:
        self._fill(self.envs.step(self.exchange.actions))
        self.num_steps += 1

    def restore(self, past: Past) -> None:
        """Begin to take the running episodes of a run again."""
        self._restoring = Restoring(self.envs, self.env_indices, past)
        self._fill(self._restoring.begin())

    def replay(self, step: int) -> None:
        """Take a step of the run again."""
        self.num_steps = step
        self._fill(self._restoring.step(step, self.exchange.actions))
        self.num_steps = step + 1

    def end_replay(self, lost: Sequence[int]) -> None:
        """Go on from where the run was; the envs with these indices with a new episode."""
        self._restoring.finish(lost)

    def call_some(self, env_indices: Sequence[int], name: str, args: tuple, kwargs: dict[str, Any]) -> dict[int, Any]:
        """Call a method, or get an attribute, of those envs of the job that are here; return results by env index."""
        here = [index for index in env_indices if index in self.env_indices]
        places = [index - self.env_indices.start for index in here]
        if len(places) == self.envs.num_envs:  # Other vector envs than a loop cannot do less.
            return dict(zip(here, self.envs.call(name, *args, **kwargs), strict=True))
        return dict(zip(here, self.envs.call_some(places, name, args, kwargs), strict=True)) if here else {}

    def set_some(self, env_indices: Sequence[int], name: str, values: Sequence[Any]) -> None:
        """Set an attribute of those envs of the job that are here, a value each."""
        pairs = zip(env_indices, values, strict=True)
        here = {index - self.env_indices.start: value for index, value in pairs if index in self.env_indices}
        if len(here) == self.envs.num_envs:
            self.envs.set_attr(name, [here[place] for place in range(self.envs.num_envs)])
        elif here:
            self.envs.set_some(list(here), name, list(here.values()))

    def render(self) -> dict[int, Any]:
        """The frames of the envs, by env index."""
        return dict(zip(self.env_indices, self.envs.render(), strict=True))

    def _fill(self, outputs: tuple[Any, ...]) -> None:
        """Copy what the envs have not written into the slot by themselves."""
        observations, *results, infos = outputs
        slot = self.exchange.slot
        if observations is not slot.observations:
            self._copy(observations, results)
        if self._pickles_infos:
            self.exchange.put_infos(infos)
        if self._checks:
            self._check()
        if self.masks is not None and not self._is_loop:
            self.masks.write_batch(infos, slot.terminations | slot.truncations)
        for leaf, (values, mask) in self._info_columns:
            write_columns(infos, leaf, values, mask)

    def _check(self) -> None:
        """Refuse wrong values in what natively vectorized envs gave."""
        slot = self.exchange.slot
        for place, what in self._checks.in_batch(slot.observations, slot.rewards).items():
            raise DataError(f"env {self.env_indices[place]}: {what}")

    def _copy(self, observations: Any, results: list[np.ndarray]) -> None:
        slot = self.exchange.slot
        for leaf, column in zip(self.exchange.layout.observations, slot.observation_arrays, strict=True):
            part = leaf.of(observations)
            if part.shape != column.shape or part.dtype != column.dtype:
                part = self._cast(leaf, part, column.shape)
            column[...] = part
        for leaf, column, values in zip(RESULTS, slot.results, results, strict=False):  # A reset has no results.
            if np.asarray(values).dtype.kind not in "biuf":
                raise misfit(leaf, values, self.env_indices.start, TypeError("no numbers"))
            column[...] = values

    def _cast(self, leaf: Leaf, part: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        """What natively vectorized envs gave in another dtype than their space's, or DataError."""
        envs, why = f"envs {self.env_indices.start} to {self.env_indices.stop - 1}", ""
        try:
            if part.shape == shape:
                return self._casting.cast(leaf, part, envs)
        except (TypeError, ValueError) as error:
            why = f": {error}"
        raise DataError(
            f"{envs}: {noun(leaf)} should be {leaf.dtype} of shape {shape}, got {part.dtype} of shape {part.shape}{why}"
        )
