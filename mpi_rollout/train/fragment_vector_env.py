"""The vector env of a trainer, as far as it takes several steps in one exchange."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium.error import AlreadyPendingCallError, NoAsyncCallError
from gymnasium.vector import AutoresetMode

from mpi_rollout.core.layout import Block
from mpi_rollout.core.spaces import Tree
from mpi_rollout.envs.inputs import Info
from mpi_rollout.errors import RankError, UsageError
from mpi_rollout.ranks.lanes import Lane, Outcomes, indices_of
from mpi_rollout.train.called_envs import CalledEnvs
from mpi_rollout.train.fragments import Batch, Fragments

if TYPE_CHECKING:
    from mpi_rollout.train.recorder import Recorder


NO_POLICY = "there is no policy on the ranks: give connect a policy, such as policy='mine:make_policy'"


class FragmentVectorEnv(CalledEnvs):
    """A `MPIVectorEnv`, as far as it takes several steps in one exchange."""

    autoreset_mode: AutoresetMode
    recorder: "Recorder | None"
    _block: Block
    _outcomes: Outcomes
    _fragments: Fragments
    _arrived: list[Lane]
    _batch_size: int

    def _lanes_of(self, envs_slice: np.ndarray | slice | None) -> Sequence[Lane]:
        raise NotImplementedError

    def _infos(self, lanes: Sequence[Lane], num_steps: int, ended: np.ndarray | None) -> list[Info]:
        raise NotImplementedError

    def collect(self, num_steps: int, actions: Tree | None = None) -> Batch:
        """Take several steps of all envs in one exchange: equal to as many calls of `step`.

        Parameters
        ----------
        num_steps
            How many.  The ranks take them all before they hear of an interrupt of rank 0.
        actions
            Of shape (num_steps, num_envs, ...), or a tree of such arrays.  None leaves them to the policy that the
            ranks have, or, without one, to chance; what is drawn depends on the seed of the last `reset` that had one.

        Returns
        -------
        A dict of arrays, which belong to the caller.  `observations` (before each step), `actions`, `rewards` float64,
        `terminations` and `truncations` bool are of shape (num_steps, num_envs, ...); `last_observations` are those
        after the last step, (num_envs, ...).  `infos` is a list of num_steps dicts, as `step` returns them.  Where the
        policy on the ranks acted, there are `extras` too, a dict of what it gave besides actions, (num_steps, num_envs,
        ...) each, and `policy_version`, (num_steps, num_envs) int64: how many times `set_policy` was called before.

        Raises
        ------
        ActionError
            The actions are not of this shape, or not in their space, in the step that the message names; nothing was
            sent.
        RankError
            An env failed on some rank, or without autoreset an episode ended before the last step; the next `reset` of
            all envs begins anew.
        """
        self.collect_async(num_steps, actions)
        return self.collect_wait()

    def set_policy(self, parameters: Mapping[str, Any] | Sequence[Any]) -> None:
        """Give the policy on the ranks new parameters: the next fragments are taken with these.

        Parameters
        ----------
        parameters
            Arrays or tensors by their names, such as a state dict, or a sequence of all of them in their order.

        Raises
        ------
        UsageError
            There is no such policy, or these are not its parameters; nothing was sent.
        AlreadyPendingCallError
            A fragment is under way.  With first ready, it may be: each rank gets the parameters with its next one.
        """
        self._check_open()
        if self._fragments.policy is None:
            raise UsageError(NO_POLICY)
        if not self._driver.serves_first_ready:
            self._check_no_fragment("set_policy")
            self._state.check_idle("set_policy")
        with self.interrupts:
            self._fragments.policy.set_parameters(parameters)

    def collect_async(
        self, num_steps: int, actions: Tree | None = None, envs_slice: np.ndarray | slice | None = None
    ) -> None:
        """Send the actions of several steps, as `collect`; the ranks step while the caller goes on.

        Parameters
        ----------
        envs_slice
            The envs that take them, as `collect_some` returned them; None is all.
        """
        self._check_open()
        if not isinstance(num_steps, int | np.integer) or num_steps < 1:
            raise ValueError(f"num_steps must be an int of at least 1, got {repr(num_steps)[:40]}")
        lanes = self._lanes_of(envs_slice)
        if not self._fragments.under_way or any(lane in self._fragments.under_way for lane in lanes):
            self._check_no_fragment("collect_async")
            self._state.check_idle("collect_async")
        self._state.check_ready(lanes)
        with self.interrupts:
            if self.recorder is not None:
                self.recorder.make_room(lanes, int(num_steps))
            if self._fragments.make_room(int(num_steps)):
                self._outcomes.use(self._driver.destinations(self._block))
            self._fragments.send(lanes, int(num_steps), actions)

    def collect_wait(self) -> Batch:
        """Wait for the steps of `collect_async` of all envs; return what `collect` returns."""
        self._check_fragments("collect_wait")
        lanes = self._driver.lanes
        if absent := [lane for lane in lanes if lane not in self._fragments.under_way]:
            envs = absent[0].envs
            raise NoAsyncCallError(
                f"collect_wait, and envs {envs.start} to {envs.stop - 1} have no fragment under way; "
                "call collect_some()",
                "collect_wait",
            )
        with self.interrupts:
            self._take_in_fragments(len(lanes))
            self._arrived.clear()
            return self._batch(lanes)

    def collect_some(self) -> Batch:
        """Wait for the fragments of the ranks that are ready first, `batch_size` of them, or of the oldest group.

        Returns
        -------
        What `collect` returns, for these envs, with `envs_slice` too: their indices, int64, in increasing order; give
        it to `collect_async`.
        """
        self._check_fragments("collect_some")
        with self.interrupts:
            self._take_in_fragments(self._batch_size)
            lanes = sorted(self._arrived[: self._batch_size], key=lambda lane: lane.envs.start)
            del self._arrived[: self._batch_size]
            return {**self._batch(lanes), "envs_slice": indices_of(lanes)}

    def _batch(self, lanes: Sequence[Lane]) -> Batch:
        batch, last = self._fragments.batch(lanes, self._outcomes.last_arrays(lanes))
        self._outcomes.keep(lanes, last)
        ended = batch["terminations"] | batch["truncations"]
        self._state.note_ends(lanes, ended[-1])
        batch["infos"] = self._infos(lanes, len(ended), ended)
        if self.recorder is not None:
            self.recorder.take_batch(lanes, batch)
        return batch

    def _take_in_fragments(self, num_lanes: int) -> None:
        """Have the fragments of so many lanes among those that have come, or of all that are under way."""
        arrived = self._arrived
        try:
            while len(arrived) < num_lanes and self._driver.under_way:
                lanes = self._driver.await_some(num_lanes - len(arrived))
                self._fragments.take(lanes)
                arrived += lanes
        except RankError as error:
            if self.autoreset_mode == AutoresetMode.DISABLED:
                error.args = (f"{error}; the fragment is void: call reset() for all envs",)
            raise

    def _check_fragments(self, what: str) -> None:
        self._check_open()
        self._state.check_whole()
        if not self._fragments.under_way:
            raise NoAsyncCallError(f"{what} without collect_async; call collect_async first", what)

    def _check_no_fragment(self, what: str) -> None:
        if self._fragments.under_way:
            self._state.check_whole()  # After a failure nothing comes.
            raise AlreadyPendingCallError(f"{what} while a fragment is under way; call collect_wait()", what)
