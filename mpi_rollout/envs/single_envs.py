"""Single envs, and what concerns each of them by itself: they are made, restarted, called by name, closed."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import gymnasium
from gymnasium.error import ResetNeeded
from gymnasium.vector.utils import batch_space

from mpi_rollout.core.spaces import describe
from mpi_rollout.envs.faults import Begun, EnvTimeout, Given, OnFault, Outcome, Result, described, named, raised_at
from mpi_rollout.envs.inputs import CalledByName, OptionsOfOne, Values, action_splitter, check_spaces, values_of_each
from mpi_rollout.envs.time_limits import TimeLimits, step_over_wrappers
from mpi_rollout.errors import EnvError, RolloutError, SignalInterrupt, UsageError
from mpi_rollout.process.exits import end_if_forked
from mpi_rollout.process.host import make_with_room
from mpi_rollout.text import counted, words_of

MAKE_PATIENCE = 10.0  # Simulators may take long to start: so many times the limit of a step.
# An env's place, a value that is another for each call, and how many times the usual limit the call may take.
Called = tuple[int, tuple[str, int, int], float]
Restart = tuple[int, str, str]  # An env's index, how it failed, and how often it did.


class SingleEnvs(CalledByName):
    """Envs that are all alike, and all of a `VectorEnv` but its steps and resets.

    Parameters
    ----------
    env_fns
        Each makes one env; all with the same spaces.
    seeds
        For each env the seeds of its episodes; None leaves them to the envs' generators.
    first_env_index
        Of the first env, for messages.

    Attributes
    ----------
    faults
        The restarts; whoever takes them in clears the list.
    """

    def __init__(
        self,
        env_fns: Sequence[Callable[[], gymnasium.Env]],
        seeds: Sequence[Iterator[int]] | None,
        first_env_index: int,
        on_fault: OnFault,
    ):
        self._env_fns, self._first_env_index, self._on_fault = list(env_fns), first_env_index, on_fault
        self._called: Called | None = None  # The env that is being reset, closed or made.
        self._num_calls = 0
        self.envs = list(make_with_room(env_fns))
        self.num_envs = len(self.envs)
        self._take_spaces()
        inner, limits = zip(*map(step_over_wrappers, self.envs), strict=True)
        self._inner = list(inner)  # The envs that are stepped.
        self._time = TimeLimits(limits)
        self._seeds = None if seeds is None else list(seeds)
        self._episodes = [0] * self.num_envs  # Begun by each env, and the seed of the last one.
        self._episode_seeds: list[int | None] = [None] * self.num_envs
        self.faults: list[Restart] = []
        self._num_restarts = [0] * self.num_envs
        self._outcomes: list[Outcome] | None = None  # The outcomes of the step under way that have come.
        self._frames: list[object] = [None] * self.num_envs

    def _take_spaces(self) -> None:
        """Take over the first env's spaces, which all must have."""
        first = self.envs[0]
        self.spec, self.render_mode = first.spec, first.render_mode
        self.single_observation_space, self.single_action_space = first.observation_space, first.action_space
        check_spaces(self.single_observation_space, self.single_action_space)
        for index, env in enumerate(self.envs):
            self._check_spaces(index, env)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self._split_actions = action_splitter(self.single_action_space, self.action_space)

    def _named(self, index: int, function: Callable[Given, Result]) -> Callable[Given, Result]:
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
        """Put a new env in the place of one that has failed, and note the fault.

        Raises
        ------
        EnvError, DataError
            The env has failed too often, or cannot be made.
        """
        end_if_forked(error)
        fault = described(error, self._describe(index))
        most = self._on_fault.max_restarts
        if self._num_restarts[index] == most:
            if most:
                fault.args = (f"{fault}; it was restarted {counted(most, 'time')} already",)
            raise fault from error
        self.replace(index)
        self._num_restarts[index] += 1
        times = f"restarted, {self._num_restarts[index]} of {counted(most, 'time')}"
        self.faults.append((self._first_env_index + index, f"{fault}{raised_at(error)}", times))

    def replace(self, index: int) -> None:
        """Put a new env in the place of one; EnvError if it cannot be made."""
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
        """Note which env is at work, for threads that ask, and how many times the usual limit it may take."""
        self._num_calls += 1
        self._called = index, ("call", self._num_calls, 0), patience
        try:
            yield
        finally:
            self._called = None

    def at_work(self) -> Called | None:
        """Return the call that is under way; for another thread to ask."""
        called, outcomes = self._called, self._outcomes
        if called is not None or outcomes is None or len(outcomes) == self.num_envs:
            return called
        place = len(outcomes)
        return place, ("step", self._time.num_steps, place), 1.0

    def _describe(self, place: int) -> str:
        """Return which env stands at a place, and in which step of its episode it is, counted from 0."""
        number = self._time.elapsed(place)
        return f"env {self._first_env_index + place}, {f'step {number - 1} of its episode' if number else 'reset'}"

    def describe_work(self, place: int) -> str:
        """Return which env stands at a place, and where it is: its step, and its episode where it is known."""
        seed = self._episode_seeds[place]
        episode = "" if seed is None else f" (episode {self._episodes[place] - 1}, seed {seed})"
        return f"{self._describe(place)}{episode}"

    def seed_episodes(self, index: int, seeds: Iterator[int], num_before: int) -> None:
        """Give one env other seeds for its episodes from the next reset on, after `num_before` episodes."""
        assert self._seeds is not None, "only the envs of a run have seeds"
        self._seeds[index], self._episodes[index] = seeds, num_before

    def _own_reset(self, index: int, env: gymnasium.Env) -> Callable[[], Begun]:
        """Return the reset that begins an episode after an end, with the arguments that reach the env in Gymnasium."""
        is_outermost = env is self.envs[index]  # Wrappers pass on their defaults.
        reset = self._named(index, env.reset)
        if self._seeds is None:
            return reset if is_outermost else partial(reset, seed=None, options=None)
        if is_outermost:
            return lambda: reset(seed=self._draw(index))
        return lambda: reset(seed=self._draw(index), options=None)

    def _given_reset(self, index: int, seed: int | None, options: OptionsOfOne) -> Callable[[], Begun]:
        """Return a reset from outside the wrappers; called again, it begins the same episode."""
        is_to_draw = self._seeds is not None and seed is None

        def reset() -> Begun:
            nonlocal seed, is_to_draw
            if is_to_draw:
                seed, is_to_draw = self._draw(index), False
            return self._named(index, self.envs[index].reset)(seed=seed, options=options)

        return reset

    def _draw(self, index: int) -> int:
        """Take the seed of an env's next episode."""
        assert self._seeds is not None
        self._episodes[index] += 1
        self._episode_seeds[index] = seed = next(self._seeds[index])
        return seed

    def render(self) -> Values:
        """Return the envs' frames."""
        with self._time.in_wrappers():
            return tuple(map(self._frame, range(self.num_envs)))

    def _frame(self, index: int) -> object:
        """Draw an env's frame; after a restart and before a reset, that is the last frame of the env before it."""
        try:
            self._frames[index] = self.envs[index].render()
        except ResetNeeded:
            if not self._num_restarts[index]:
                raise
        return self._frames[index]

    def call_some(self, env_indices: Sequence[int], name: str, *args: object, **kwargs: object) -> Values:
        with self._time.in_wrappers():
            results = []
            for place in env_indices:
                attribute = self.envs[place].get_wrapper_attr(name)
                results.append(attribute(*args, **kwargs) if callable(attribute) else attribute)
            return tuple(results)

    def set_some(self, env_indices: Sequence[int], name: str, values: object) -> None:
        with self._time.in_wrappers():
            for place, value in zip(env_indices, values_of_each(values, len(env_indices)), strict=True):
                self.envs[place].set_wrapper_attr(name, value)

    def close_extras(self, **kwargs: object) -> None:
        """Close all envs, even if one cannot be closed; raise the first error.

        After an env that takes too long, the others are left: as a rule they are alike, and each would take as long.
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
