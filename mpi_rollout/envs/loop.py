"""A slice of unmodified envs, stepped one after the other: the loop that everything else must keep up with.

Semantics are those of `gymnasium.vector.SyncVectorEnv`, bit for bit, in its three autoreset modes; what differs is
the price: outputs are written once, into arrays that the caller gives (a rank's slot), and the wrappers that
`gymnasium.make` puts around every env are stepped over, what they do being done here for all envs at once.
"""

from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from operator import call
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode

from mpi_rollout.core.layout import RESULTS, Columns, SlotLayout
from mpi_rollout.core.spaces import leaves, tree_of
from mpi_rollout.envs.faults import ABORT, OnFault, OutputChecks, WrongValue, begun, no_outcome
from mpi_rollout.envs.inputs import Options, options_of_each, seed_of_each, take_reset_mask
from mpi_rollout.envs.infos import MaskColumn
from mpi_rollout.envs.outputs import (
    Casting,
    ObservationRows,
    RewardColumn,
    info_misfit,
    is_exact,
    row_by_row,
    write_result,
)
from mpi_rollout.envs.single_envs import SingleEnvs
from mpi_rollout.errors import DataError, SignalInterrupt
from mpi_rollout.exchange.infos import FINAL_OBS


class LoopVectorEnv(SingleEnvs):
    """Step `env_fns`' envs in a sequential loop.

    Parameters
    ----------
    env_fns
        Each makes one env; all with the same spaces.
    seeds
        For each env the seeds of its episodes, taken at every reset that is not given one.  Without them episodes
        go on with the env's own generator, as in Gymnasium.
    first_env_index
        Of the first env, for messages.
    autoreset_mode
        NEXT_STEP: an env is reset in the step after its episode's end, its action is ignored.  SAME_STEP: in the
        same step; the last observation is then in `columns.final_observation_arrays`, and in the infos only where its
        types are not those of its space.  DISABLED: only by `reset`.
    infos
        True: those that `SyncVectorEnv` returns.  False: always {}, for no time.  Names: what envs say under these.
    on_fault
        An env that may be made anew has then been truncated, with its last observation, reward 0 and
        {"env_error": what it was} as its info.  If it was to begin an episode, it is to begin another in the next step.

    `step` and `reset` return the same arrays each time, valid until the next call.
    """

    def __init__(
        self,
        env_fns: Sequence[Callable[[], gymnasium.Env]],
        *,
        seeds: Sequence[Iterator[int]] | None = None,
        first_env_index: int = 0,
        autoreset_mode: AutoresetMode = AutoresetMode.NEXT_STEP,
        infos: bool | tuple[str, ...] = True,
        on_fault: OnFault = ABORT,
    ):
        super().__init__(env_fns, seeds, first_env_index, on_fault)
        self.autoreset_mode = AutoresetMode(autoreset_mode)
        self.metadata = dict(self.envs[0].metadata) | {"autoreset_mode": self.autoreset_mode}
        self._infos = infos
        is_same_step = self.autoreset_mode is AutoresetMode.SAME_STEP
        self._leaves, self._casting = leaves(self.single_observation_space), Casting(on_fault.strict_dtypes)
        layout = SlotLayout(self.single_observation_space, self.num_envs, has_final_observations=is_same_step)
        self.write_to(layout.one(np.zeros(layout.nbytes, np.uint8), self.num_envs))
        self._steps = [self._named(index, env.step) for index, env in enumerate(self._inner)]
        self._own_resets = [self._own_reset(index, env) for index, env in enumerate(self._inner)]
        self._resets = [self._reset_instead(index) for index in range(self.num_envs)]
        self._calls = [env.step for env in self.envs]  # OrderEnforcing is in charge until an env is reset.
        self.add_info = self._add_info  # As in Gymnasium; a rank gathers them to be sent.
        self._ends = np.zeros(self.num_envs, np.bool_)
        self._ended: list[int] = []  # And not reset since.
        self._checks = OutputChecks(self.single_observation_space, on_fault)
        self.masks: MaskColumn | None = None  # Where those of the envs are wanted.
        self._outcomes: list[Any] | None = None  # Of the sweep under way as many as have come.
        # While episodes are taken again: envs that failed, and are left out since.
        self.failing: set[int] | None = None

    def write_to(self, columns: Columns) -> None:
        """From now on write outputs into these arrays of `num_envs` rows, and return them."""
        self.columns = columns
        parts, first = self._leaves, self._first_env_index
        self._rows = ObservationRows(parts, columns.observation_arrays, first, self._casting)
        self._rewards = RewardColumn(columns.rewards, first)
        self._own_rows = row_by_row(parts, columns.observation_arrays, first, self._casting)
        if self.autoreset_mode is AutoresetMode.SAME_STEP:
            self._final_rows = row_by_row(parts, columns.final_observation_arrays, first, self._casting)

    def reset(self, *, seed: int | Sequence[int | None] | None = None, options: Options = None):
        """Start a new episode in every env, or in those of `options["reset_mask"]`, a bool array of `num_envs`.

        The outermost wrappers are called: OrderEnforcing allows rendering only after that.

        Parameters
        ----------
        options
            For all envs, or a list with those of each.
        """
        seeds = seed_of_each(seed, self.num_envs)
        mask, options = take_reset_mask(options, self.num_envs)
        indices = list(range(self.num_envs)) if mask is None else mask.nonzero()[0].tolist()
        return self._reset_these(indices, seeds, options_of_each(options, self.num_envs))

    def reset_some(self, indices: Sequence[int]) -> tuple[Any, dict[str, Any]]:
        """Begin an episode in some envs only; others, which have not begun any, are to be held till they do."""
        for index in set(range(self.num_envs)).difference(indices):
            self._reset_from_outside(index)
        return self._reset_these(indices, [None] * self.num_envs, [None] * self.num_envs)

    def _reset_these(self, indices: Sequence[int], seeds: Sequence[Any], options: Sequence[Any]):
        """Reset some envs; the rows of the others stay as they are."""
        observations, infos = [], {}
        for index in indices:
            observation, info = self._begin(index, self._given_reset(index, seeds[index], options[index]))
            if self.masks is not None:
                self.masks.begin(index, info)
            if not self.failing or index not in self.failing:
                self._calls[index] = self._steps[index]
            observations.append(observation)
            self._add_infos(infos, self._wanted([info]), index)
        for column in self.columns.results:
            column[indices] = 0
        self._ended = sorted(set(self._ended).difference(indices))
        if len(indices) == self.num_envs:
            self._rows.write(observations)
        else:
            for index, observation in zip(indices, observations, strict=True):
                self._own_rows[index].write([observation])
        return self.columns.observations, infos

    def hold(self, index: int, observation: Any) -> None:
        """Leave one env out of steps until `release`: it is said to observe this, without reward or end."""
        info = {} if self.masks is None else self.masks.info_of(index)
        self._calls[index] = lambda _action: (observation, 0.0, False, False, info)

    def release(self, index: int) -> None:
        """Have one env take part in steps again, its episode as new as when it was held."""
        self._calls[index] = self._steps[index]
        self._time.begin(index)

    def end_episode(self, index: int) -> None:
        """Have one env begin a new episode in the next step."""
        self._ended = sorted({*self._ended, index})

    def step(self, actions: Any):
        """Step every env; where its episode ended, do what the autoreset mode says.

        Raises
        ------
        EnvError
            An env raised.
        DataError
            An env returned what its space does not promise, or has ended and is not reset (in DISABLED mode).
        """
        observations, rewards, terminations, truncations, infos = self._sweep(actions)
        self._write_results(rewards, terminations, truncations)
        if self.masks is not None and self.masks.places:
            self.masks.write(infos, self._ended)
        infos = self._wanted(infos)
        if self._ended and self.autoreset_mode is AutoresetMode.SAME_STEP:
            observations, gathered = self._begin_again(observations, infos)
        else:
            gathered = self._add_infos({}, infos)
        self._rows.write(observations)
        return self.columns.observations, *self.columns.results, gathered

    def _sweep(self, actions: Any) -> tuple[tuple[Any, ...], ...]:
        """Step the envs, or reset those that have ended; return observations, rewards and so on, env by env."""
        if self._ended and self.autoreset_mode is AutoresetMode.DISABLED:
            raise self._not_reset()
        self._time.num_steps += 1
        for index in self._ended:
            self._calls[index] = self._resets[index]
        outcomes = self._step_each(actions)
        for index in self._ended:
            self._calls[index] = self._steps[index]
        columns = self._transposed(outcomes)
        if self._checks:
            found = self._checks.in_each(columns[0], columns[1])
            for index, what in found.items():
                outcomes[index] = self._forgive(index, WrongValue(what))
            columns = self._transposed(outcomes) if found else columns
        return columns

    def _step_each(self, actions: Any) -> list[tuple[Any, ...]]:
        outcomes: list[tuple[Any, ...]] = []
        pending = map(call, self._calls, self._split_actions(actions))
        while len(outcomes) < self.num_envs:
            try:
                self._outcomes = outcomes
                outcomes.extend(pending)  # If one raises, its place is known, and the others can go on.
                if len(outcomes) < self.num_envs:
                    raise StopIteration  # An env has raised it, and `extend` taken it for the end.
            except SignalInterrupt:
                raise
            except BaseException as error:
                self._outcomes = None
                outcomes.append(self._forgive(len(outcomes), error))
        self._outcomes = None
        return outcomes

    def _transposed(self, outcomes: list[tuple[Any, ...]]) -> tuple[tuple[Any, ...], ...]:
        try:
            observations, rewards, terminations, truncations, infos = zip(*outcomes, strict=True)
            return observations, rewards, terminations, truncations, infos
        except (TypeError, ValueError) as error:
            raise no_outcome(outcomes, self._first_env_index) from error

    def _forgive(self, index: int, error: BaseException) -> tuple[Any, ...]:
        """Make an env anew that has failed in a step; return what is said of it instead.

        Raises
        ------
        EnvError, DataError
            It has failed too often.
        """
        if self.failing is not None:
            self.leave_out(index)
            return self._calls[index](None)
        self._restart(index, error)
        return self._last_observation(index), 0.0, False, True, {"env_error": self.faults[-1][1]}

    def leave_out(self, index: int) -> None:
        """Call an env no more, and say in each step that it is truncated, which no episode under way is."""
        self.failing.add(index)
        last = self._last_observation(index)
        self._calls[index] = lambda _action: (last, 0.0, False, True, {})

    def _last_observation(self, index: int) -> Any:
        parts = [np.array(array[index]) for array in self.columns.observation_arrays]
        return tree_of(self.single_observation_space, parts)

    def make_anew(self, index: int) -> None:
        super().make_anew(index)
        self._steps[index] = self._calls[index] = self._named(index, self._inner[index].step)
        self._reset_from_outside(index)

    def _reset_from_outside(self, index: int) -> None:
        """From now on call the outermost wrappers of an env, which do not know of a reset yet."""
        self._own_resets[index] = self._own_reset(index, self.envs[index])
        self._resets[index] = self._reset_instead(index)

    def _reset_instead(self, index: int) -> Callable[[Any], tuple[Any, ...]]:
        reset, begin = self._own_resets[index], self._time.begin

        def step(_action):
            begin(index)
            observation, info = reset()
            if self.masks is not None:
                self.masks.begin(index, info)
            return observation, 0.0, False, False, info

        return step

    def _begin(self, index: int, reset: Callable[[], Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode of one env outside the sweep, if need be with a new env; `reset` is another than its own."""
        while True:
            self._time.begin(index)
            try:
                with self._calling(index):
                    observation, info = begun(self._own_resets[index]() if reset is None else reset())
                for what in self._checks.in_each([observation]).values():
                    raise WrongValue(what)
                return observation, info
            except SignalInterrupt:
                raise
            except BaseException as error:
                if self.failing is not None:
                    self.leave_out(index)
                    return self._last_observation(index), {}
                self._restart(index, error)

    def at_work(self) -> tuple[int, Any, float] | None:
        """For another thread to ask: the env that is being called, what is another for each call, and its patience."""
        called, outcomes = self._called, self._outcomes
        if called is not None:
            return called[0], ("call", called[1]), called[2]
        if outcomes is None or len(outcomes) == self.num_envs:
            return None
        place = len(outcomes)
        return place, ("step", self._time.num_steps, place), 1.0

    def _begin_again(self, observations: Sequence[Any], infos: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
        """Reset the envs that have just ended, keeping their last observations and infos apart.

        Envs may write again to what they returned: each one's outputs are kept before it is reset.
        """
        observations, gathered, start = list(observations), {}, 0
        for index in self._ended:
            self._add_infos(gathered, infos[start:index], start)
            self._final_rows[index].write([observations[index]])
            if self._infos is True and not is_exact(self._leaves, observations[index]):
                self._add_infos(gathered, [{FINAL_OBS: deepcopy(observations[index])}], index)
            self._add_infos(gathered, [{"final_info": info} for info in infos[index : index + 1]], index)
            observations[index], info = self._begin(index)
            self._add_infos(gathered, self._wanted([info]), index)
            start = index + 1
        self._ended = []
        return observations, self._add_infos(gathered, infos[start:], start)

    def _write_results(self, *results: tuple[Any, ...]) -> None:
        rewards, *ends = results
        self._rewards.write(rewards)
        _, terminations, truncations = columns = self.columns.results
        for leaf, column, values in zip(RESULTS[1:], columns[1:], ends, strict=True):
            write_result(leaf, column, values, self._first_env_index)
        if self._time.num_steps >= self._time.next_deadline:
            self._time.apply(truncations)
        np.logical_or(terminations, truncations, out=self._ends)
        self._ended = self._ends.nonzero()[0].tolist()

    def _wanted(self, infos: Sequence[dict[str, Any]]) -> Sequence[dict[str, Any]]:
        """One dict per env, or nothing where nobody wants to know."""
        if isinstance(self._infos, bool):
            return infos if self._infos else ()
        return [{name: info[name] for name in self._infos if name in info} if info else {} for info in infos]

    def _add_infos(self, gathered: dict[str, Any], infos: Sequence[dict[str, Any]], start: int = 0) -> dict[str, Any]:
        """Add the infos of the envs from `start` on to those of the envs before, as Gymnasium does."""
        if not any(infos):
            return gathered
        for index, info in enumerate(infos, start):
            try:
                self.add_info(gathered, info, index)
            except DataError as error:
                raise DataError(f"env {self._first_env_index + index}: {error}") from error
            except (AttributeError, LookupError, OverflowError, TypeError, ValueError) as error:
                raise info_misfit(info, self._first_env_index + index, error) from error
        return gathered

    def _not_reset(self) -> DataError:
        first, *others = (self._first_env_index + index for index in self._ended)
        return DataError(
            f"env {first}{f' and {len(others)} others' if others else ''}: its episode has ended, and with "
            "autoreset_mode DISABLED nothing resets it; before the next step, call "
            'reset(options={"reset_mask": terminations | truncations})'
        )
