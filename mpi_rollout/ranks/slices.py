"""A slice: one rank's envs for one exchange.  Orders act on it, and it fills the slots."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.vector import VectorEnv

from mpi_rollout.core.layout import RESULTS, noun
from mpi_rollout.core.seeding import seed_of_slice
from mpi_rollout.core.spaces import Leaf
from mpi_rollout.envs.faults import ABORT, OnFault, OutputChecks
from mpi_rollout.envs.infos import MaskColumn
from mpi_rollout.envs.inputs import Options, Reset, Seeds, Step
from mpi_rollout.envs.loop import LoopVectorEnv
from mpi_rollout.envs.outputs import Casting, misfit
from mpi_rollout.envs.replaying import Past, Restoring
from mpi_rollout.envs.single_envs import Restart
from mpi_rollout.errors import DataError
from mpi_rollout.exchange.exchange import Command, Exchange
from mpi_rollout.exchange.infos import Infos, add_info, write_columns
from mpi_rollout.ranks.watchdog import Work


class Slice:
    """The envs of one rank that take part in one exchange.

    Parameters
    ----------
    envs
        A `LoopVectorEnv` writes straight into the slot; what other vector envs return is copied there.
    infos
        "none", "all" or a mapping, see `infos`.
    heeds_masks
        The envs' action masks go with the slot; then there are no `infos`.

    Attributes
    ----------
    num_steps
        Steps that the envs have taken: the index of the step that they are in, or that comes after a reset.
    sends_faults
        The last slot tells which envs were restarted.
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
        self._loop = envs if isinstance(envs, LoopVectorEnv) else None
        self._pickles_infos, self._has_none = infos == "all", infos == "none"
        self.sends_faults = False
        # A loop checks by itself.
        self._checks = None if self._loop else OutputChecks(envs.single_observation_space, on_fault)
        self._casting = Casting(on_fault.strict_dtypes)
        self._info_columns = list(zip(exchange.layout.infos, exchange.slot.info_arrays, strict=True))
        self.masks: MaskColumn | None = None
        if heeds_masks:
            column = self._info_columns.pop()[1] if self._info_columns else None
            self.masks = MaskColumn(envs.single_action_space, column, self.env_indices.start)
        if self._loop is not None:
            self._loop.write_to(exchange.slot)
            self._loop.infos.add_one, self._loop.masks = add_info, self.masks

    def reset(self, seed: Seeds = None, mask: np.ndarray | None = None, options: Options = None) -> None:
        """Reset the envs, or those of a mask over all envs of the job; `seed` and `options` are for all envs too.

        An int seeds env i with seed + i, as Gymnasium does, and a natively vectorized slice by `seed_of_slice`.
        """
        mine = slice(self.env_indices.start, self.env_indices.stop)
        if isinstance(seed, int):
            seeds = [seed + index for index in self.env_indices]
            seed = seeds if self._loop is not None else seed_of_slice(seed, self.env_indices)
        elif seed is not None:
            seed = seed[mine]
        if isinstance(options, list):
            options = options[mine]
        if mask is not None:
            assert not isinstance(options, Sequence), "a mask comes with a dict of options, or none"
            options = {**(options or {}), "reset_mask": mask[mine]}
        self._fill(self.envs.reset(seed=seed, options=options))  # type: ignore[arg-type]  # Lists too, in a loop.

    def take_faults(self) -> list[Restart]:
        """Return the restarts since the last slot; where nobody has asked for infos, they go with the slot."""
        faults = list(self._loop.faults) if self._loop is not None and self._loop.faults else []
        if self._has_none and (faults or self.sends_faults):
            self.exchange.put_infos({"faults": [fault[:2] for fault in faults]} if faults else {})
            self.sends_faults = bool(faults)
        if faults and self._loop is not None:
            self._loop.faults.clear()
        return faults

    def at_work(self) -> Work | None:
        """Return the call that is under way, of one env or of all; for another thread to ask."""
        loop = self._loop
        if loop is None:
            first, last = self.env_indices[0], self.env_indices[-1]
            return Work((id(self), self._num_done), lambda: f"step {self.num_steps}: envs {first} to {last}")
        work = loop.at_work()
        if work is None:
            return None
        place, call, patience = work
        return Work((id(self), call), lambda: f"step {self.num_steps}: {loop.describe_work(place)}", patience)

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
        assert self._loop is not None, "natively vectorized envs cannot be brought back"
        self._restoring = Restoring(self._loop, self.env_indices, past)
        self._fill(self._restoring.begin())

    def replay(self, step: int) -> None:
        """Take a step of the run again."""
        self.num_steps = step
        self._fill(self._restoring.step(step, self.exchange.actions))
        self.num_steps = step + 1

    def end_replay(self, lost: Sequence[int]) -> None:
        """Go on from where the run was; the envs with these indices with a new episode."""
        self._restoring.finish(lost)

    def call_some(
        self, env_indices: Sequence[int], name: str, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> dict[int, object]:
        """Call a method, or get an attribute, of those envs of the job that are here; return results by env index."""
        here = [index for index in env_indices if index in self.env_indices]
        places = [index - self.env_indices.start for index in here]
        if not here:
            return {}
        if self._loop is not None:
            return dict(zip(here, self._loop.call_some(places, name, *args, **kwargs), strict=True))
        return dict(zip(here, self._native_envs(len(here)).call(name, *args, **kwargs), strict=True))

    def set_some(self, env_indices: Sequence[int], name: str, values: Sequence[object]) -> None:
        """Set an attribute of those envs of the job that are here, a value each."""
        pairs = zip(env_indices, values, strict=True)
        here = {index - self.env_indices.start: value for index, value in pairs if index in self.env_indices}
        if self._loop is not None:
            self._loop.set_some(list(here), name, list(here.values()))
        elif here:
            self._native_envs(len(here)).set_attr(name, [here[place] for place in range(len(here))])

    def _native_envs(self, num_envs: int) -> Any:
        """Return natively vectorized envs, to call methods that Gymnasium's class does not declare, of all envs."""
        if num_envs < self.envs.num_envs:
            raise AttributeError("natively vectorized envs are called all together, not some of them")
        return self.envs

    def render(self) -> dict[int, object]:
        """Return the frames of the envs, by env index."""
        return dict(zip(self.env_indices, self.envs.render() or (), strict=True))

    def _fill(self, outputs: Reset | Step) -> None:
        """Copy into the slot what the envs have not written there."""
        observations, *results, infos = outputs
        slot = self.exchange.slot
        if observations is not slot.observations:
            self._copy(observations, results)
        if self._pickles_infos:
            self.exchange.put_infos(infos)
        if self._checks:
            for place, what in self._checks.in_batch(slot.observations, slot.rewards).items():
                raise DataError(f"env {self.env_indices[place]}: {what}")
        if self.masks is not None and self._loop is None:
            self.masks.write_batch(infos, slot.terminations | slot.truncations)
        for leaf, (values, mask) in self._info_columns:
            write_columns(infos, leaf, values, mask)

    def _copy(self, observations: object, results: list[np.ndarray]) -> None:
        slot = self.exchange.slot
        for leaf, column in zip(self.exchange.layout.observations, slot.observation_arrays, strict=True):
            part = leaf.of(observations)
            if part.shape != column.shape or part.dtype != column.dtype:
                part = self._cast(leaf, part, column.shape)
            column[...] = part
        for leaf, column, values in zip(RESULTS, slot.results, results, strict=False):  # A reset has no results.
            if np.asarray(values).dtype.kind not in "biuf":
                raise misfit(leaf, list(values), self.env_indices.start, TypeError("no numbers"))
            column[...] = values

    def _cast(self, leaf: Leaf, part: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        """Cast what natively vectorized envs gave in another dtype than their space's, or raise DataError."""
        envs, why = f"envs {self.env_indices.start} to {self.env_indices.stop - 1}", ""
        try:
            if part.shape == shape:
                return self._casting.cast(leaf, part, envs)
        except (TypeError, ValueError) as error:
            why = f": {error}"
        expected = f"{leaf.dtype} of shape {shape}"
        raise DataError(f"{envs}: {noun(leaf)} should be {expected}, got {part.dtype} of shape {part.shape}{why}")
