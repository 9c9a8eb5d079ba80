"""The envs of all ranks as one `gymnasium.vector.VectorEnv`, held by the root.

What `reset`, `step` and `recv` return belongs to the caller.  With `copy=False` observations are views of memory
that the call after the next one for the same envs overwrites: the observations before a step and those after it are
both alive, and nothing is copied.  Everything else belongs to the caller either way.

`collect` takes several steps in one exchange, with actions that are known beforehand, or that the ranks choose.

`step` is `send`, then `recv`.  Where envs are divided into groups, or ranks are served as they get ready, `recv`
returns some of the envs and says which; `send` takes actions for these envs.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from gymnasium.error import AlreadyPendingCallError, NoAsyncCallError
from gymnasium.vector import AutoresetMode

from mpi_rollout.core.spaces import Tree, set_spaces
from mpi_rollout.envs import inputs
from mpi_rollout.envs.inputs import Info, Options, Reset, Seeds, Step
from mpi_rollout.exchange.infos import FINAL_OBS
from mpi_rollout.exchange.orders import Command
from mpi_rollout.process.interrupts import Interrupts
from mpi_rollout.ranks.driver import Driver
from mpi_rollout.ranks.lanes import NUM_ROWS, Lane, Outcomes, final_observations, indices_of, lanes_of, parts_of
from mpi_rollout.ranks.policy_on_ranks import PolicyOnRanks
from mpi_rollout.ranks.set_up import EnvFacts
from mpi_rollout.train.fragment_vector_env import FragmentVectorEnv
from mpi_rollout.train.fragments import Fragments
from mpi_rollout.train.turns import CallState, Turns

if TYPE_CHECKING:
    from mpi_rollout.train.recorder import Recorder  # Imports h5py: a worker's imports are the job's start-up time.

Received = tuple[Tree, np.ndarray, np.ndarray, np.ndarray, Info, np.ndarray]  # A step of some envs, and their indices.


class MPIVectorEnv(FragmentVectorEnv):
    """All ranks' envs, in env order whatever the number of ranks.  `mpi_rollout.connect` makes it.

    Parameters
    ----------
    batch_size
        With first ready, the number of ranks whose envs `recv` waits for.
    copy
        False: observations are views, see the module.
    turns
        The connections over the same ranks; None in one process.

    Attributes
    ----------
    num_envs, observation_space, action_space, single_observation_space, single_action_space, spec, render_mode
        As Gymnasium has them.
    autoreset_mode
        As SyncVectorEnv has it.
    metadata
        The envs' metadata, and `autoreset_mode`.
    recorder
        Takes down what the trainer does; None without `record`.
    has_turn
        The ranks await the orders of these envs, not those of another connection.
    """

    def __init__(
        self,
        driver: Driver,
        facts: EnvFacts,
        autoreset_mode: AutoresetMode,
        batch_size: int,
        copy: bool,
        turns: Turns | None = None,
    ):
        self._driver, self._batch_size = driver, batch_size
        set_spaces(self, driver.num_envs, driver.observation_space, driver.action_space)
        self.spec, self.render_mode = facts.spec, facts.render_mode
        self.metadata = {**facts.metadata, "autoreset_mode": autoreset_mode}
        self.autoreset_mode = autoreset_mode
        self._block = block = driver.block(NUM_ROWS)
        self._outcomes = Outcomes(driver.observation_space, block, driver.destinations(block), copy)
        self._fragments = Fragments(driver)
        self._arrived: list[Lane] = []
        self._turns, self.has_turn = turns, turns is None or not turns.open
        self._lane_of_env = np.concatenate([np.full(lane.num_envs, i) for i, lane in enumerate(driver.lanes)])
        self.interrupts = Interrupts(driver.worker.is_in_envs)  # After all that may fail: it is there until `close`.
        driver.worker.is_wanted = lambda: False  # A trainer gets whole fragments.
        self.recorder: Recorder | None = None
        self._state = CallState(driver, facts, autoreset_mode, self._arrived, self.interrupts)

    def use_policy(self, start: Callable[[Driver], PolicyOnRanks]) -> None:
        """Have ranks ask a policy for the actions of their own envs: what `start` returns when it is their turn."""
        self._check_open()
        with self.interrupts:
            self._fragments.policy = start(self._driver)

    def reset(self, *, seed: Seeds = None, options: Options = None) -> Reset:
        """Start a new episode in every env, or in those of `options["reset_mask"]`.

        Parameters
        ----------
        seed
            An int s seeds env i with s + i; a list has a seed for each env; None leaves the envs' generators alone.
        options
            For the envs: a dict, or a list with one for each env.  `reset_mask` in a dict is a bool array of shape
            (num_envs,) with at least one True; the other envs go on with their episodes.

        Returns
        -------
        Observations of shape (num_envs, ...), infos.
        """
        self._begin_anew_if_need_be()
        self._check_no_fragment("reset")
        self._state.check_idle("reset")
        seed = inputs.read_seed(seed, self.num_envs)
        mask, options = inputs.take_reset_mask(options, self.num_envs)
        self._state.check_reset(seed, mask, options)
        lanes = self._driver.lanes
        with self.interrupts:
            if self.recorder is not None:
                self.recorder.make_room(lanes, 0)
            self._driver.do(Command.RESET, seed, mask, options)
            self._state.is_reset = True
            self.interrupts.forget()
            self._state.ended[slice(None) if mask is None else mask] = False
            if isinstance(seed, int):
                self._fragments.seed(seed)
            self._outcomes.lay(lanes)
            [infos] = self._driver.take_infos(lanes)
            self._driver.restarts.clear()
            if self.recorder is not None:
                self.recorder.reset(self._outcomes.last_arrays(lanes), infos, seed, mask, options)
            return self._outcomes.observations(lanes), infos

    def _begin_anew_if_need_be(self) -> None:
        """After a failure or an interrupt, drop what is under way: all envs are going to be reset."""
        self._check_open()
        is_lost = self.interrupts.has_interrupted and (self._driver.under_way or self._arrived)
        if is_lost or self._state.needs_reset():
            with self.interrupts:
                self._drop()
                self._driver.begin_anew()
                self.interrupts.forget()

    def _drop(self) -> None:
        """Drop what is under way: from now on all envs must be reset."""
        self._state.is_reset = False
        self._fragments.under_way.clear()
        self._arrived.clear()
        if self.recorder is not None:
            self.recorder.needs_reset = True
        self._driver.drain(is_void=True)

    def step(self, actions: Tree) -> Step:
        """Step all envs; see `send` and `recv`.

        Parameters
        ----------
        actions
            Of shape (num_envs, ...), or a tree of such arrays; for Dict and Tuple spaces also a list of samples.

        Returns
        -------
        observations (num_envs, ...), rewards float64, terminations bool, truncations bool (num_envs,), infos.
        """
        lanes = self._driver.lanes
        self._check_open()
        self._check_no_fragment("step")
        self._state.check_ready(lanes)
        with self.interrupts:
            self._send(lanes, actions)
            while self._driver.under_way:
                self._take_in()
            self._arrived.clear()
            return self._outcome(lanes)

    def send(self, actions: object, envs_slice: np.ndarray | None = None) -> None:
        """Check actions and send them to the ranks, which step while the caller goes on.

        Parameters
        ----------
        actions
            Of shape (len(envs_slice), ...), or a tree of such arrays, or a list of samples, as for `step`.
        envs_slice
            The envs, as `recv` returned them; None is all.

        Raises
        ------
        ActionError
            Shape, dtype or values do not fit the action space; nothing was sent.
        ResetNeeded, AlreadyPendingCallError, ValueError
            These envs do not wait for actions; nothing was sent.
        """
        lanes = self._lanes_of(envs_slice)
        self._check_open()
        self._check_no_fragment("send")
        self._state.check_ready(lanes)
        with self.interrupts:
            self._send(lanes, actions)

    def _send(self, lanes: Sequence[Lane], actions: object) -> None:
        driver, recorder = self._driver, self.recorder
        if recorder is not None:
            recorder.make_room(lanes, 1)
        arrays = driver.read(actions, indices_of(lanes))
        for lane, part in parts_of(lanes):
            driver.send(lane, [array[part] for array in arrays])
        if recorder is not None:
            recorder.act(lanes, arrays)

    def _lanes_of(self, envs_slice: np.ndarray | slice | None) -> Sequence[Lane]:
        lanes = self._driver.lanes
        return lanes if envs_slice is None else lanes_of(lanes, self._lane_of_env, envs_slice)

    def _check_open(self) -> None:
        self._state.check_open(self.closed)
        if self._turns is not None and not self.has_turn:
            self._turns.give(self)

    def yield_turn(self, number: int, is_closing: bool) -> None:
        """Have the ranks await the orders of the connection with this number; `is_closing`: to close it.

        Raises
        ------
        AlreadyPendingCallError
            The envs are stepping, and the program was not interrupted meanwhile.
        """
        is_pending = self._state.is_pending()
        if is_pending and not is_closing and not self.interrupts.has_interrupted:
            raise AlreadyPendingCallError(
                "envs of another connection have been sent actions and not been received; call recv() there until all "
                "have come",
                "connect",
            )
        with self.interrupts:
            if is_pending:
                self._drop()
            self._driver.switch(number)
            self.has_turn = False

    def recv(self) -> Received:
        """Wait until envs have stepped: the group sent first, or the `batch_size` ranks that are ready first.

        Returns
        -------
        As `step`, for these envs, and `envs_slice`: their indices, int64, in increasing order; give it to `send`.

        Raises
        ------
        NoAsyncCallError
            Nothing was sent.
        RankError
            An env failed on some rank; the next `reset` of all envs begins anew.
        """
        self._check_open()
        self._state.check_whole()
        self._check_no_fragment("recv")
        if not self._driver.under_way and not self._arrived:
            raise NoAsyncCallError("recv without send; call send(actions) first", "recv")
        with self.interrupts:
            while len(self._arrived) < self._batch_size and self._driver.under_way:
                self._take_in(self._batch_size - len(self._arrived))
            lanes = sorted(self._arrived[: self._batch_size], key=lambda lane: lane.envs.start)
            del self._arrived[: self._batch_size]
            return *self._outcome(lanes), indices_of(lanes)

    def _take_in(self, least: int = 1) -> None:
        self._arrived += (lanes := self._driver.await_some(least))
        self._outcomes.lay(lanes)

    def _outcome(self, lanes: Sequence[Lane]) -> Step:
        observations, (rewards, terminations, truncations) = self._outcomes.outcome(lanes)
        ended = None
        if self.autoreset_mode != AutoresetMode.NEXT_STEP:
            ended = (terminations | truncations)[None]
            self._state.note_ends(lanes, ended[-1])
        [infos] = self._infos(lanes, 1, ended)
        if self.recorder is not None:
            self.recorder.take(lanes, observations, (rewards, terminations, truncations), infos)
        return observations, rewards, terminations, truncations, infos

    def _infos(self, lanes: Sequence[Lane], num_steps: int, ended: np.ndarray | None) -> list[Info]:
        """Return the infos of each step of the last slots; `ended` tells of each step which envs ended in it."""
        all_infos = self._driver.take_infos(lanes, num_steps)
        if self.recorder is not None and self.recorder.heeds_restarts:
            self.recorder.note_restarts(lanes, self._driver.restarts, all_infos)
        self._driver.restarts.clear()  # Whoever wants to know of them asks for infos.
        if self.autoreset_mode == AutoresetMode.SAME_STEP and ended is not None:
            for step in np.flatnonzero(ended.any(axis=1)).tolist():
                infos, rows = all_infos[step], ended[step]
                infos[FINAL_OBS] = final_observations(self.single_observation_space, lanes, rows, infos, step)
                infos[f"_{FINAL_OBS}"] = rows
        return all_infos

    def __enter__(self) -> "MPIVectorEnv":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def finish_recording(self) -> None:
        """Complete the file of `record`, if there is one; StorageError if it cannot be written."""
        if self.recorder is not None:
            with self.interrupts:
                self.recorder.finish()

    def close_extras(self, code: int = 0, **_kwargs: object) -> None:
        """Let the other ranks out of `connect`, with the job's exit code."""
        if self._turns is not None and not self.has_turn:
            self._turns.give(self, is_closing=True)
        try:
            self.finish_recording()
        finally:
            self._let_out(code)

    def _let_out(self, code: int) -> None:
        try:
            with self.interrupts:
                self.closed = True  # Also if a handler of the program raises at the end of this: all is done then.
                self._driver.stop(code)
                self._driver.exchanges.free()
                if self._turns is not None:
                    self._turns.close(self)
        finally:
            self.interrupts.close()
