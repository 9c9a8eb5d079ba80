"""The envs of all ranks as one `gymnasium.vector.VectorEnv`, held by the root.

What `reset`, `step` and `recv` return belongs to the caller.  With `copy=False` observations are views of memory
that the call after the next one for the same envs overwrites: the observations before a step and those after it are
both alive, and nothing is copied.  Everything else belongs to the caller either way.

`step` is `send`, then `recv`.  Where envs are divided into groups, or ranks are served as they get ready, `recv`
returns some of the envs and says which; `send` takes actions for these envs.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium.error import AlreadyPendingCallError, ClosedEnvironmentError, NoAsyncCallError, ResetNeeded
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from mpi_rollout.envs.inputs import Options, Seeds, options_of_each, read_seed, take_reset_mask, values_of_each
from mpi_rollout.errors import RankError
from mpi_rollout.exchange.exchange import Command
from mpi_rollout.exchange.infos import FINAL_OBS
from mpi_rollout.process.interrupts import Interrupts
from mpi_rollout.ranks.driver import Driver
from mpi_rollout.ranks.lanes import NUM_ROWS, Lane, Outcomes, final_observations, indices_of
from mpi_rollout.ranks.set_up import EnvFacts

if TYPE_CHECKING:
    from mpi_rollout.train.connection import Turns

Step = tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]  # As Gymnasium's vector envs return it.
Received = tuple[
    Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any], np.ndarray
]  # The same of some envs, and which.


class MPIVectorEnv(VectorEnv):
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
        turns: "Turns | None" = None,
    ):
        self._driver, self._batch_size = driver, batch_size
        self.num_envs = driver.num_envs
        self.single_observation_space, self.single_action_space = driver.observation_space, driver.action_space
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self.spec, self.render_mode = facts.spec, facts.render_mode
        self.metadata = {**facts.metadata, "autoreset_mode": autoreset_mode}
        self.autoreset_mode, self._is_native = autoreset_mode, facts.share_generator
        block = driver.block(NUM_ROWS)
        self._outcomes = Outcomes(driver.observation_space, block, driver.destinations(block), copy)
        self._arrived: list[Lane] = []
        self._turns, self.has_turn = turns, turns is None or not turns.open
        self._is_reset = False
        self._enforces_order = facts.spec is not None and facts.spec.order_enforce  # Others may be stepped at once.
        self._ended = np.zeros(self.num_envs, np.bool_)
        self._lane_of_env = np.concatenate([np.full(lane.num_envs, i) for i, lane in enumerate(driver.lanes)])
        self.interrupts = Interrupts(driver.worker.is_in_envs)  # Last of all: it is there until `close`.

    def reset(self, *, seed: Seeds = None, options: Options = None) -> tuple[Any, dict[str, Any]]:
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
        self._check_idle("reset")
        seed = read_seed(seed, self.num_envs)
        mask, options = take_reset_mask(options, self.num_envs)
        self._check_reset(seed, mask, options)
        lanes = self._driver.lanes
        with self.interrupts:
            self._driver.do(Command.RESET, seed, mask, options)
            self._is_reset = True
            self.interrupts.forget()
            self._ended[slice(None) if mask is None else mask] = False
            self._outcomes.lay(lanes)
            return self._outcomes.observations(lanes), self._infos(lanes)

    def _begin_anew_if_need_be(self) -> None:
        """After a failure or an interrupt, drop what is under way: all envs are going to be reset."""
        self._check_open()
        is_lost = self.interrupts.has_interrupted and (self._driver.under_way or self._arrived)
        if is_lost or self._needs_reset():
            with self.interrupts:
                self._drop()
                self._driver.begin_anew()
                self.interrupts.forget()

    def _drop(self) -> None:
        """Drop what is under way: from now on all envs must be reset."""
        self._is_reset = False
        self._arrived.clear()
        self._driver.drain(is_void=True)

    def _needs_reset(self) -> bool:
        return self._driver.has_fault or self.interrupts.is_broken

    def _check_reset(self, seed: Seeds, mask: np.ndarray | None, options: Options) -> None:
        options_of_each(options, self.num_envs)
        if self._is_native:
            are_lists = {"seeds": isinstance(seed, list), "options": isinstance(options, list)}
            for name, is_given in {**are_lists, "reset_mask": mask is not None}.items():
                if is_given:
                    problem = f"natively vectorized envs are reset together, got {name} for each"
                    raise ValueError(f"{problem}; give one for all")
        if mask is not None and not mask.any():
            raise ValueError("options['reset_mask'] must have at least one True, got none; leave it out to reset all")
        if mask is not None and not mask.all() and not self._is_reset:
            raise ResetNeeded("the first reset must be of all envs; reset without options['reset_mask'] first")

    def step(self, actions: Any) -> Step:
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
        self._check_ready(lanes)
        with self.interrupts:
            self._driver.send(lanes, actions)
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
        lanes = self._driver.lanes if envs_slice is None else self._lanes_of(envs_slice)
        self._check_ready(lanes)
        with self.interrupts:
            self._driver.send(lanes, actions)

    def _lanes_of(self, envs_slice: np.ndarray | slice) -> list[Lane]:
        """The lanes of these envs, whole and in env order."""
        indices = np.arange(self.num_envs)[envs_slice] if isinstance(envs_slice, slice) else np.asarray(envs_slice)
        try:
            lanes = [self._driver.lanes[i] for i in dict.fromkeys(self._lane_of_env[indices].tolist())]
            if np.array_equal(indices_of(lanes), indices):
                return lanes
        except (IndexError, ValueError, TypeError):
            pass
        raise ValueError(f"envs_slice must be what recv returned, got {envs_slice!r}; or None for all envs")

    def _check_ready(self, lanes: Sequence[Lane]) -> None:
        self._check_open()
        self._check_whole()
        if self._enforces_order and not self._is_reset:
            raise ResetNeeded("step before reset; call reset() first")
        for lane in lanes:
            if lane in self._driver.under_way or lane in self._arrived:
                raise AlreadyPendingCallError(
                    f"envs {lane.envs.start} to {lane.envs.stop - 1} have been sent actions and not been received; "
                    "call recv() between two sends",
                    "send",
                )
        if self.autoreset_mode == AutoresetMode.DISABLED and self._ended.any():
            self._check_running(lanes)

    def _check_running(self, lanes: Sequence[Lane]) -> None:
        ended = [int(index) for index in indices_of(lanes) if self._ended[index]]
        if ended:
            others = f" and {len(ended) - 1} more have" if ended[1:] else " has"
            raise ValueError(
                f"env {ended[0]}{others} ended and autoreset is disabled; reset {'them' if ended[1:] else 'it'} "
                'with reset(options={"reset_mask": terminations | truncations})'
            )

    def _check_idle(self, what: str) -> None:
        self._check_open()
        if self._driver.under_way or self._arrived:
            raise AlreadyPendingCallError(f"{what} while envs are stepping; call recv() until all have come", what)

    def _check_open(self) -> None:
        if self.closed:
            raise ClosedEnvironmentError("these envs are closed: the ranks have left; connect again for more")
        if self.interrupts.is_broken and self._driver.exchanges.division.num_ranks > 1:
            raise ClosedEnvironmentError("an exchange with the ranks was left half done; leave the with statement")
        if self._turns is not None and not self.has_turn:
            self._turns.give(self)

    def ask(self, method: str, *args: object) -> None:
        """Call a method of every rank's worker, for what concerns more than the envs."""
        self._check_idle(method)
        with self.interrupts:
            self._driver.call_ranks(method, *args)

    def yield_turn(self, number: int, is_closing: bool) -> None:
        """Have the ranks await the orders of the connection with this number; `is_closing`: to close it.

        Raises
        ------
        AlreadyPendingCallError
            The envs are stepping, and the program was not interrupted meanwhile.
        """
        is_pending = self._driver.under_way or self._arrived
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

    def _check_whole(self) -> None:
        if self._needs_reset():
            raise ResetNeeded("an env failed, or was interrupted amid its step; call reset() to begin anew")

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
        self._check_whole()
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
        rewards, terminations, truncations = self._outcomes.results(lanes)
        ended = terminations | truncations
        if self.autoreset_mode == AutoresetMode.DISABLED:
            self._ended[indices_of(lanes)] = ended
        observations = self._outcomes.observations(lanes)
        return observations, rewards, terminations, truncations, self._infos(lanes, ended)

    def _infos(self, lanes: Sequence[Lane], ended: np.ndarray | None = None) -> dict[str, Any]:
        infos = self._driver.take_infos(lanes)
        self._driver.restarts.clear()  # Whoever wants to know of them asks for infos.
        if self.autoreset_mode == AutoresetMode.SAME_STEP and ended is not None and ended.any():
            infos[FINAL_OBS], infos[f"_{FINAL_OBS}"] = self._final_observations(lanes, ended, infos), ended
        return infos

    def _final_observations(self, lanes: Sequence[Lane], ended: np.ndarray, infos: dict[str, Any]) -> np.ndarray:
        """The last observation of each env that ended, else None: from the slots, or as the env gave it."""
        is_told = infos.get(f"_{FINAL_OBS}", np.zeros(len(ended), np.bool_))
        observations = final_observations(self.single_observation_space, lanes, ended & ~is_told)
        for index in np.flatnonzero(is_told & ended):
            observations[index] = infos[FINAL_OBS][index]
        return observations

    def render(self) -> tuple[Any, ...]:
        """Return what each env's `render` gives, in env order."""
        frames = self._call_envs("render")
        return tuple(frames[index] for index in range(self.num_envs))

    def call(self, name: str, *args: object, **kwargs: object) -> tuple[Any, ...]:
        """Call a method of each env, or get an attribute; pickled, so not for every step."""
        return self.call_some(range(self.num_envs), name, *args, **kwargs)

    def call_some(self, env_indices: Sequence[int], name: str, *args: object, **kwargs: object) -> tuple[Any, ...]:
        """`call` of these envs only."""
        results = self._call_envs("call_some", list(env_indices), name, args, kwargs)
        return tuple(results[index] for index in env_indices)

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """Get an attribute of each env."""
        return self.call(name)

    def set_attr(self, name: str, values: object) -> None:
        """Set an attribute of each env: of all to one value, or of each to its own of a list or tuple."""
        self.set_some(range(self.num_envs), name, values)

    def set_some(self, env_indices: Sequence[int], name: str, values: object) -> None:
        """`set_attr` of these envs only."""
        values = values_of_each(values, len(env_indices))
        self._call_envs("set_some", list(env_indices), name, list(values))

    def _call_envs(self, method: str, *args: object) -> dict[int, Any]:
        self._check_idle(method)
        try:
            with self.interrupts:
                return self._driver.call_envs(method, *args)
        except RankError as error:
            if error.type_name == "AttributeError":  # Callers ask for attributes that may not be there.
                raise AttributeError(str(error)) from None
            raise

    @property  # type: ignore[misc]  # As SyncVectorEnv has it.
    def np_random(self) -> tuple[np.random.Generator, ...]:  # type: ignore[override]
        """Copies of the envs' random generators."""
        return self.get_attr("np_random")

    @property
    def np_random_seed(self) -> tuple[int, ...]:  # type: ignore[override]  # As SyncVectorEnv has it.
        """The seeds of the envs' random generators."""
        return self.get_attr("np_random_seed")

    def __enter__(self) -> "MPIVectorEnv":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close_extras(self, code: int = 0, **_kwargs: object) -> None:
        """Let the other ranks out of `connect`, with the job's exit code."""
        if self._turns is not None and not self.has_turn:
            self._turns.give(self, is_closing=True)
        try:
            with self.interrupts:
                self.closed = True  # Also if a handler of the program raises at the end of this: all is done then.
                self._driver.stop(code)
                self._driver.exchanges.free()
                if self._turns is not None:
                    self._turns.close(self)
        finally:
            self.interrupts.close()
