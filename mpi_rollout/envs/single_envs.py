"""Single envs, and what concerns each of them by itself: they are made, restarted, called by name, closed."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from time import perf_counter

import gymnasium
from gymnasium.error import ResetNeeded

from mpi_rollout.core.spaces import describe, set_spaces
from mpi_rollout.envs.agents import agents_envs
from mpi_rollout.envs.faults import (
    Begun,
    EnvTimeout,
    Given,
    OnFault,
    Outcome,
    Result,
    described,
    making,
    named,
    raised_at,
    said_by,
)
from mpi_rollout.envs.inputs import CalledByName, OptionsOfOne, Values, action_splitter, check_spaces, one_for_each
from mpi_rollout.envs.time_limits import TimeLimits, step_over_wrappers
from mpi_rollout.errors import EnvError, RolloutError, SignalInterrupt, UsageError
from mpi_rollout.process.exits import end_if_forked
from mpi_rollout.process.host import make_with_room
from mpi_rollout.text import counted

MAKE_PATIENCE = 10.0  # Simulators may take long to start: so many times the limit of a step.
# An env's place; the name of the call, in a value that is another for each one; how many times the usual limit it may
# take.
Called = tuple[int, tuple[str, int, int], float]
Ahead = tuple[int, Begun | None, BaseException | None]  # A seed, and what a reset with it has returned or raised.
Restart = tuple[int, str, str]  # An env's index, how it failed, and how often it did.


class SingleEnv:
    """One env of a loop: how it is stepped, and how its episodes begin.

    Parameters
    ----------
    env_index
        Its index in the job, for messages.
    seeds
        Those of its episodes; None leaves them to the env's generator.
    is_named
        Its calls can be seen in stacks, see `faults.named`.
    """

    def __init__(self, env: gymnasium.Env, env_index: int, seeds: Iterator[int | None] | None, is_named: bool):
        self.env_index, self.seeds, self._is_named = env_index, seeds, is_named
        self.num_episodes, self.num_restarts = 0, 0  # Those that have begun.
        self.seed: int | None = None  # Of the last episode.
        self._frame: object = None
        self.take(env)

    def take(self, env: gymnasium.Env) -> None:
        """Step this env from now on, below the wrappers of `gymnasium.make`."""
        self.env = env
        self._ahead: Ahead | None = None
        inner, self.limit = step_over_wrappers(env)
        self.step, self._reset = self._named(inner.step), self._named(inner.reset)
        self._is_wrapped = inner is not env

    def begin_from_outside(self) -> None:
        """From now on call the reset of the outermost wrappers, which do not know of a reset yet."""
        self._reset, self._is_wrapped = self._named(self.env.reset), False

    def _named(self, function: Callable[Given, Result]) -> Callable[Given, Result]:
        return named(function, self.env_index) if self._is_named else function

    def begin(self) -> Begun:
        """Begin an episode that nobody asked for, with the arguments that reach the env in Gymnasium."""
        self._ahead = None
        if self._is_wrapped:  # Wrappers pass on their defaults.
            return self._reset(seed=None if self.seeds is None else self._draw(), options=None)
        return self._reset() if self.seeds is None else self._reset(seed=self._draw())

    def given_reset(self, seed: int | None, options: OptionsOfOne) -> Callable[[], Begun]:
        """Return a reset from outside the wrappers; called again, it begins the same episode."""
        own_seed = cache(self._draw if self.seeds is not None and seed is None else lambda: seed)
        return lambda: self._reset_from_outside(own_seed(), options)

    def begin_ahead(self, seed: int, outcome: Begun | None, error: BaseException | None) -> None:
        """Note what a reset with this seed has given or raised: the next reset from outside with it gives the same."""
        self._ahead = seed, outcome, error

    def _reset_from_outside(self, seed: int | None, options: OptionsOfOne) -> Begun:
        ahead, self._ahead = self._ahead, None
        if ahead is None or ahead[0] != seed or options is not None:
            return self._named(self.env.reset)(seed=seed, options=options)
        _, outcome, error = ahead
        if error is not None:
            raise error
        return outcome  # type: ignore[return-value]  # Whatever a reset has returned.

    def _draw(self) -> int | None:
        """Take the seed of the next episode."""
        assert self.seeds is not None
        self.num_episodes += 1
        self.seed = seed = next(self.seeds)
        return seed

    def render(self) -> object:
        """Draw a frame; after a restart and before a reset, that is the last frame of the env before it."""
        try:
            self._frame = self.env.render()
        except ResetNeeded:
            if not self.num_restarts:
                raise
        return self._frame


class SingleEnvs(CalledByName):
    """Envs that are all alike, and all of a `VectorEnv` but its steps and resets; parameters are those of the loop."""

    def __init__(
        self,
        env_fns: Sequence[Callable[[], gymnasium.Env]],
        seeds: Sequence[Iterator[int | None]] | None,
        first_env_index: int,
        on_fault: OnFault,
    ):
        self._env_fns, self._first_env_index, self._on_fault = list(env_fns), first_env_index, on_fault
        self._called: Called | None = None  # The env that is being reset, closed or made.
        self._num_calls = 0
        self._outcomes: list[Outcome] | None = None  # The outcomes of the step under way that have come.
        envs = self._make_all()
        self._take_spaces(envs)
        self.agents = agents_envs(self.single_observation_space, envs)  # Below all wrappers.
        is_named = on_fault.timeout_s is not None
        self._singles = [
            SingleEnv(env, env_index, own_seeds, is_named)
            for env_index, (env, own_seeds) in enumerate(
                zip(envs, [None] * len(envs) if seeds is None else seeds, strict=True), first_env_index
            )
        ]
        self._time = TimeLimits([single.limit for single in self._singles])
        self.faults: list[Restart] = []  # Whoever takes them in clears the list.
        self.closed = False

    def _make_all(self) -> list[gymnasium.Env]:
        """Make all envs; note how long the last one took: the first one includes its modules."""
        envs: list[gymnasium.Env] = []
        self.make_s = 0.0
        start = perf_counter()
        for env in make_with_room([partial(self._make, index) for index in range(len(self._env_fns))]):
            envs.append(env)
            self.make_s, start = perf_counter() - start, perf_counter()
        return envs

    def begin_ahead(self, index: int, seed: int, outcome: Begun | None, error: BaseException | None) -> None:
        """Let the first reset of one env give what a reset with its seed has given or raised already."""
        self._singles[index].begin_ahead(seed, outcome, error)

    @property
    def envs(self) -> list[gymnasium.Env]:
        """The envs with all of their wrappers."""
        return [single.env for single in self._singles]

    def _make(self, index: int) -> gymnasium.Env:
        """Make one env; EnvError with its index where that fails."""
        with making(f"env {self._first_env_index + index}"):
            return self._env_fns[index]()

    def _take_spaces(self, envs: list[gymnasium.Env]) -> None:
        """Take over the first env's spaces, which all must have."""
        first = envs[0]
        self.spec, self.render_mode = first.spec, first.render_mode
        check_spaces(first.observation_space, first.action_space)
        set_spaces(self, len(envs), first.observation_space, first.action_space)
        for index, env in enumerate(envs):
            self._check_spaces(index, env)
        self._split_actions = action_splitter(first.action_space)

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

        EnvError or DataError if the env has failed too often, or cannot be made.
        """
        end_if_forked(error)
        fault, single = described(error, self._describe(index)), self._singles[index]
        most = self._on_fault.max_restarts
        if single.num_restarts == most:
            if most:
                fault.args = (f"{fault}; it was restarted {counted(most, 'time')} already",)
            raise fault from error
        self.replace(index)
        single.num_restarts += 1
        times = f"restarted, {single.num_restarts} of {counted(most, 'time')}"
        self.faults.append((single.env_index, f"{fault}{raised_at(error)}", times))

    def replace(self, index: int) -> None:
        """Put a new env in the place of one; EnvError if it cannot be made."""
        single = self._singles[index]
        self._close(index)  # What is wrong with it is known.
        try:
            with self._calling(index, "made again", MAKE_PATIENCE):
                env = self._env_fns[index]()
            self._check_spaces(index, env)
        except SignalInterrupt:
            raise
        except BaseException as error:
            end_if_forked(error)
            what = error if isinstance(error, RolloutError) else said_by(error)
            raise EnvError(f"env {single.env_index} could not be restarted: {what}") from error
        single.take(env)
        before, self.agents = self.agents, agents_envs(self.single_observation_space, self.envs)
        if self.agents:  # Whoever acted is truncated.
            self.agents[index].take_over(before[index])
        self._time.replace(index, single.limit)

    @contextmanager
    def _calling(self, index: int, name: str, patience: float = 1.0) -> Iterator[None]:
        """Note which call of which env is under way, for threads that ask, and how many usual limits it may take."""
        self._num_calls += 1
        self._called = index, (name, self._num_calls, 0), patience
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

    def describe_work(self, place: int, call: str) -> str:
        """Return which env stands at a place, and where it is: its step, and its episode where it is known.

        `call` is the name of the call that is under way, see `at_work`.
        """
        single = self._singles[place]
        if call not in ("step", "reset"):
            return f"env {single.env_index}, {call}"
        episode = "" if single.seed is None else f" (episode {single.num_episodes - 1}, seed {single.seed})"
        return f"{self._describe(place)}{episode}"

    def seed_episodes(self, index: int, seeds: Iterator[int], num_before: int) -> None:
        """Give one env other seeds for its episodes from the next reset on, after `num_before` episodes."""
        single = self._singles[index]
        assert single.seeds is not None, "only the envs of a run have seeds"
        single.seeds, single.num_episodes = seeds, num_before

    def render(self) -> Values:
        with self._time.in_wrappers():
            return tuple(single.render() for single in self._singles)

    def call_some(self, env_indices: Sequence[int], name: str, *args: object, **kwargs: object) -> Values:
        with self._time.in_wrappers():
            results = []
            for place in env_indices:
                attribute = self._singles[place].env.get_wrapper_attr(name)
                results.append(attribute(*args, **kwargs) if callable(attribute) else attribute)
            return tuple(results)

    def set_some(self, env_indices: Sequence[int], name: str, values: object) -> None:
        with self._time.in_wrappers():
            of_each = one_for_each("values of set_attr", values, len(env_indices))
            for place, value in zip(env_indices, of_each, strict=True):
                self._singles[place].env.set_wrapper_attr(name, value)

    def close_extras(self, **kwargs: object) -> None:
        """Close all envs, even if one cannot be closed; raise the first error.

        After an env that takes too long, the others are left: as a rule they are alike, and each would take as long.
        """
        problems: list[BaseException] = []
        for index in range(self.num_envs):
            problems += self._close(index)
            if problems and isinstance(problems[-1], EnvTimeout):
                break
        if problems:
            raise problems[0]

    def _close(self, index: int) -> list[BaseException]:
        """Close one env; return what it raised, if it did."""
        try:
            with self._calling(index, "close"):
                self._singles[index].env.close()
        except SignalInterrupt:
            raise
        except BaseException as error:
            end_if_forked(error)
            return [error]
        return []
