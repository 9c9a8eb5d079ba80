"""Single envs behind the parts of `VectorEnv`'s contract that concern each of them by itself, in no hurry."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium.error import ResetNeeded
from gymnasium.vector import VectorEnv
from gymnasium.vector.utils import batch_space

from mpi_rollout.core.host import make_with_room
from mpi_rollout.core.spaces import describe
from mpi_rollout.envs.faults import EnvTimeout, OnFault, WrongValue, named, raised_at
from mpi_rollout.envs.inputs import action_splitter, check_spaces
from mpi_rollout.envs.time_limits import TimeLimits, step_over_wrappers
from mpi_rollout.errors import (
    DataError,
    EnvError,
    RolloutError,
    SignalInterrupt,
    UsageError,
    counted,
    message_of,
    words_of,
)
from mpi_rollout.process.exits import end_if_forked

MAKE_PATIENCE = 10.0  # Simulators may take long to start: so many times the limit of a step.


class SingleEnvs(VectorEnv):
    """Envs that are all alike: made, made anew, asked, closed.

    Parameters
    ----------
    env_fns
        Each makes one env; all with the same spaces.
    seeds
        For each env the seeds of its episodes.
    first_env_index
        Of the first env, for messages.

    Attributes
    ----------
    faults
        Of each env that was made anew index, failure and how often it was; whoever takes them in clears the list.
    """

    def __init__(
        self,
        env_fns: Sequence[Callable[[], gymnasium.Env]],
        seeds: Sequence[Iterator[int]] | None,
        first_env_index: int,
        on_fault: OnFault,
    ):
        self._env_fns, self._first_env_index, self._on_fault = list(env_fns), first_env_index, on_fault
        self.envs = list(make_with_room(env_fns))
        self.num_envs = len(self.envs)
        first = self.envs[0]
        self.spec, self.render_mode = first.spec, first.render_mode
        self.single_observation_space, self.single_action_space = first.observation_space, first.action_space
        check_spaces(self.single_observation_space, self.single_action_space)
        for index, env in enumerate(self.envs):
            self._check_spaces(index, env)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self._split_actions = action_splitter(self.single_action_space, self.action_space)
        inner, limits = zip(*map(step_over_wrappers, self.envs), strict=True)
        self._inner = list(inner)  # What is stepped.
        self._time = TimeLimits(limits)
        self._seeds = None if seeds is None else list(seeds)
        self._episodes = [0] * self.num_envs  # Begun by each env, and the seed of the last one.
        self._episode_seeds: list[int | None] = [None] * self.num_envs
        self.faults: list[tuple[int, str, str]] = []
        self._num_restarts = [0] * self.num_envs
        # The env that is being reset, closed or made, the number of such calls, and its patience.
        self._called: tuple[int, int, float] | None = None
        self._num_calls = 0
        self._frames: list[Any] = [None] * self.num_envs

    def _named(self, index: int, function: Callable[..., Any]) -> Callable[..., Any]:
        if self._on_fault.timeout_s is None:
            return function
        return named(function, self._first_env_index + index)

    def _check_spaces(self, index: int, env: gymnasium.Env) -> None:
        for name in ("observation_space", "action_space"):
            got, expected = describe(getattr(env, name)), describe(getattr(self, f"single_{name}"))
            if got != expected:
                raise UsageError(
                    f"all envs must have the same {name}, env {self._first_env_index} has {expected}, "
                    f"env {self._first_env_index + index} has {got}; make them equal"
                )

    def _restart(self, index: int, error: BaseException) -> None:
        """Put a new env in the place of one that has failed.

        Raises
        ------
        EnvError, DataError
            It has failed too often, or cannot be made.
        """
        end_if_forked(error)
        fault = self._error(index, error)
        most = self._on_fault.max_restarts
        if self._num_restarts[index] == most:
            if most:
                fault.args = (f"{fault}; it was restarted {counted(most, 'time')} already",)
            raise fault from error
        self.make_anew(index)
        self._num_restarts[index] += 1
        times = f"restarted, {self._num_restarts[index]} of {counted(most, 'time')}"
        self.faults.append((self._first_env_index + index, f"{fault}{raised_at(error)}", times))

    def make_anew(self, index: int) -> None:
        """Put a new env in the place of one that has failed.

        Raises
        ------
        EnvError
            It cannot be made.
        """
        try:
            with self._calling(index):
                self.envs[index].close()
        except SignalInterrupt:
            raise
        except BaseException:  # What is wrong with it is known.
            pass
        try:
            with self._calling(index, patience=MAKE_PATIENCE):
                env = self._env_fns[index]()
            self._check_spaces(index, env)
        except SignalInterrupt:
            raise
        except BaseException as error:
            what = error if isinstance(error, RolloutError) else words_of(error)
            raise EnvError(f"env {self._first_env_index + index} could not be restarted: {what}") from error
        self.envs[index] = env
        self._inner[index], limits = step_over_wrappers(env)
        self._time.replace(index, limits)

    @contextmanager
    def _calling(self, index: int, patience: float = 1.0) -> Iterator[None]:
        """Say which env is at work, for who asks meanwhile, and how many times the usual limit it may take."""
        self._num_calls += 1
        self._called = index, self._num_calls, patience
        try:
            yield
        finally:
            self._called = None

    def _error(self, place: int, error: BaseException) -> RolloutError:
        what = f"{self.describe(place)}: "
        if isinstance(error, WrongValue | DataError):
            return DataError(f"{what}{error}")
        if isinstance(error, SystemExit):
            return EnvError(f"{what}called sys.exit({message_of(error)})")
        if isinstance(error, EnvTimeout):
            return EnvError(f"{what}{error}")
        return EnvError(f"{what}{words_of(error)}")

    def describe(self, place: int) -> str:
        """Which env it is that stands at a place, and in which step of its episode, counted from 0."""
        number = self._time.elapsed(place)
        return f"env {self._first_env_index + place}, {f'step {number - 1} of its episode' if number else 'reset'}"

    def episode(self, place: int) -> str:
        """Which episode an env is in, where it is known."""
        if self._episode_seeds[place] is None:
            return ""
        return f"episode {self._episodes[place] - 1}, seed {self._episode_seeds[place]}"

    def seed_episodes(self, index: int, seeds: Iterator[int], num_before: int) -> None:
        """Give one env other seeds for its episodes from the next reset on; so many have been before."""
        self._seeds[index], self._episodes[index] = seeds, num_before

    def _own_reset(self, index: int, env: gymnasium.Env) -> Callable[[], tuple[Any, dict[str, Any]]]:
        """What begins an env's episode that nobody asked for, with the arguments that reach it in Gymnasium."""
        given = {} if env is self.envs[index] else {"seed": None, "options": None}  # Wrappers pass on their defaults.
        reset = self._named(index, env.reset)
        if self._seeds is None:
            return partial(reset, **given)
        return lambda: reset(**given | {"seed": self._draw(index)})

    def _given_reset(self, index: int, seed: int | None, options: Any) -> Callable[[], tuple[Any, dict[str, Any]]]:
        """What begins an episode from outside the wrappers; called again, the same one."""
        is_to_draw = self._seeds is not None and seed is None

        def reset():
            nonlocal seed, is_to_draw
            if is_to_draw:
                seed, is_to_draw = self._draw(index), False
            return self._named(index, self.envs[index].reset)(seed=seed, options=options)

        return reset

    def _draw(self, index: int) -> int:
        """The seed of an env's next episode."""
        self._episodes[index] += 1
        self._episode_seeds[index] = seed = next(self._seeds[index])
        return seed

    def render(self) -> tuple[Any, ...]:
        """The envs' frames."""
        with self._time.in_wrappers():
            return tuple(map(self._frame, range(self.num_envs)))

    def _frame(self, index: int) -> Any:
        """An env's frame; of one that was made anew and not reset since, that of the env before it."""
        try:
            self._frames[index] = self.envs[index].render()
        except ResetNeeded:
            if not self._num_restarts[index]:
                raise
        return self._frames[index]

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Call each env's method `name`, or get its attribute, wherever in its wrappers it is."""
        return self.call_some(range(self.num_envs), name, args, kwargs)

    def call_some(
        self, places: Sequence[int], name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, ...]:
        """`call` of the envs at some places only."""
        with self._time.in_wrappers():
            found = []
            for place in places:
                attribute = self.envs[place].get_wrapper_attr(name)
                found.append(attribute(*args, **kwargs) if callable(attribute) else attribute)
            return tuple(found)

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """Get each env's attribute `name`, or what it returns if it is a method."""
        return self.call(name)

    def set_attr(self, name: str, values: Any) -> None:
        """Set each env's attribute `name`: to the values of a list or tuple, or all to the same.

        Raises
        ------
        ValueError
            The list is not as long as there are envs.
        """
        if not isinstance(values, list | tuple):
            values = [values] * self.num_envs
        if len(values) != self.num_envs:
            raise ValueError(f"values for {name!r} must be one or one for each of {self.num_envs} envs, got {values!r}")
        self.set_some(range(self.num_envs), name, values)

    def set_some(self, places: Sequence[int], name: str, values: Sequence[Any]) -> None:
        """`set_attr` of the envs at some places only, a value each."""
        with self._time.in_wrappers():
            for place, value in zip(places, values, strict=True):
                self.envs[place].set_wrapper_attr(name, value)

    @property
    def np_random(self) -> tuple[np.random.Generator, ...]:
        """The envs' generators."""
        return self.get_attr("np_random")

    @property
    def np_random_seed(self) -> tuple[int, ...]:
        """The seeds of the envs' generators."""
        return self.get_attr("np_random_seed")

    def close_extras(self, **kwargs: Any) -> None:
        """Close all envs, also when one cannot be closed; raise what the first of these raises.

        Where one takes too long, the others are left: as a rule they are alike, and each would take as long.
        """
        problems = []
        for index, env in enumerate(self.envs):
            try:
                with self._calling(index):
                    env.close()
            except SignalInterrupt:
                raise
            except BaseException as error:
                problems.append(error)
                if isinstance(error, EnvTimeout):
                    break
        if problems:
            raise problems[0]
