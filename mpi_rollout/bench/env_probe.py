"""What one env is like, measured in a process of its own: an env may crash, hang or leave.

The child makes the env as a run does, steps it with random actions for a second or so, and prints what it measured as
a line of JSON, as jobs do.
"""

import json
import math
import sys
from dataclasses import asdict, dataclass
from time import perf_counter

import gymnasium
import numpy as np
from gymnasium.vector.utils import batch_space

from mpi_rollout.bench.jobs import JobFailed, JobRunner
from mpi_rollout.bench.plan import Options
from mpi_rollout.config import RolloutConfig, flag
from mpi_rollout.core.host import resident_nbytes
from mpi_rollout.core.spaces import leaves
from mpi_rollout.envs.bare import WINDOW_S, time_steps
from mpi_rollout.envs.env_maker import EnvMaker, maker_of
from mpi_rollout.errors import DataError, EnvError, RolloutError, UsageError, words_of
from mpi_rollout.process.loading import load_policy

MAKING_S, MOST_MADE = 1.0, 8
POLICY_S, POLICY_CALLS = 0.25, 200
PROGRAM = "from mpi_rollout.bench.env_probe import serve; serve()"


@dataclass(frozen=True)
class EnvFigures:
    """What was measured of one env, on one core.

    Parameters
    ----------
    step_s, step_spread_s
        Mean and standard deviation of a step's seconds, resets apart.
    reset_s, reset_spread_s
        The same of a reset, the first one left out; 0 if no episode ended.
    steps_per_episode
        On average; 0 if no episode ended.
    bytes_per_env, process_bytes
        Memory that another env takes, and that a process has with a single one.
    policy_s
        Seconds of a call of the policy on all envs; 0 for the random one.
    is_native
        It has a `vector_entry_point`.
    """

    step_s: float
    step_spread_s: float
    num_steps: int
    reset_s: float
    reset_spread_s: float
    steps_per_episode: float
    observation_bytes: int
    action_bytes: int
    bytes_per_env: float
    process_bytes: int
    policy_s: float
    is_native: bool

    @property
    def resets_per_step(self) -> float:
        return 1 / self.steps_per_episode if self.steps_per_episode else 0.0

    @property
    def reset_share(self) -> float:
        """The part of an env's time that resets take."""
        return self.resets_per_step * self.reset_s / self.env_s

    @property
    def env_s(self) -> float:
        """Mean of what a step takes with the reset after it, if there is one."""
        return self.step_s + self.resets_per_step * self.reset_s

    @property
    def env_spread_s(self) -> float:
        """Standard deviation of `env_s`.

        A step has a reset after it with the probability `resets_per_step`, whatever the step took: var(B R) =
        E[B] E[R**2] - (E[B] E[R])**2.  Outliers count: the other ranks wait for what is rare and long.
        """
        share = self.resets_per_step
        resets_s2 = share * (self.reset_spread_s**2 + (1 - share) * self.reset_s**2)
        return math.sqrt(self.step_spread_s**2 + resets_s2)


def probe_env(options: Options, jobs: JobRunner, window_s: float = WINDOW_S) -> EnvFigures:
    """Measure an env in a child process, stepping it for `window_s` seconds.

    Raises
    ------
    UsageError
        There is no such env, or it does not take its arguments.
    DataError
        The policy failed.
    EnvError
        It failed, crashed, or took longer than a job may.
    Interrupted
        Somebody asked us to stop.
    """
    config = RolloutConfig(**options)
    try:
        measured = jobs.run_command([sys.executable, "-c", PROGRAM, json.dumps([options, window_s])])
    except JobFailed as error:
        for kind in (UsageError, DataError):
            if error.code == kind.exit_code:
                raise kind(str(error).partition(": ")[2]) from error
        name = config.env or config.env_factory
        message = f"measuring {name} by itself: {error}; try it without MPI: gymnasium.make, reset, step"
        raise EnvError(message) from None
    return EnvFigures(**{key: value for key, value in measured.items() if key != "complete"})


def serve() -> None:
    """Measure what the command line says, in the child."""
    printed, sys.stdout = sys.stdout, sys.stderr  # Envs print.
    sys.path.insert(0, "")
    try:
        options, window_s = json.loads(sys.argv[1])
        figures = measure_env(RolloutConfig(**options), window_s)
    except RolloutError as error:
        sys.stderr.write(f"mpi_rollout: {error.shown(flag)}\n")
        sys.exit(error.exit_code)
    except Exception as error:
        sys.stderr.write(f"mpi_rollout: {words_of(error)}\n")
        sys.exit(EnvError.exit_code)
    printed.write(json.dumps(asdict(figures) | {"complete": True}) + "\n")
    printed.flush()


def measure_env(config: RolloutConfig, window_s: float = WINDOW_S) -> EnvFigures:
    """Measure an env in this process, stepping it for some seconds."""
    make = maker_of(config)
    env = make()
    process_bytes = resident_nbytes()
    observation_space, action_space = env.observation_space, env.action_space
    nbytes = [sum(leaf.nbytes for leaf in leaves(space)) for space in (observation_space, action_space)]
    policy_s = measure_policy(config, observation_space)
    times = time_steps(env, config.seed, window_s)
    return EnvFigures(
        step_s=float(np.mean(times.step_s)),
        step_spread_s=float(np.std(times.step_s)),
        num_steps=len(times.step_s),
        reset_s=times.reset_mean_s,
        reset_spread_s=times.reset_spread_s,
        steps_per_episode=times.steps_per_episode,
        observation_bytes=nbytes[0],
        action_bytes=nbytes[1],
        bytes_per_env=measure_memory(make, config, env),
        process_bytes=process_bytes,
        policy_s=policy_s,
        is_native=has_native(make, env),
    )


def measure_memory(make: EnvMaker, config: RolloutConfig, first: gymnasium.Env) -> float:
    """Return the bytes by which the process grows for another env that is reset and stepped once, as `first` was."""
    begin, before = perf_counter(), resident_nbytes()
    envs: list[gymnasium.Env] = []
    while len(envs) < min(MOST_MADE, max(1, config.num_envs - 1)) and perf_counter() - begin < MAKING_S:
        env = make()
        env.reset(seed=config.seed)
        env.step(env.action_space.sample())
        envs.append(env)
    grown = resident_nbytes() - before
    for env in [first, *envs]:
        env.close()
    return max(0.0, grown / len(envs))


def measure_policy(config: RolloutConfig, observation_space: gymnasium.Space) -> float:
    """Return the median seconds of a call of the policy, on made-up observations of all envs."""
    if config.policy == "random":
        return 0.0
    policy = load_policy(config.policy)
    observations = batch_space(observation_space, config.num_envs).sample()
    taken: list[float] = []
    try:
        policy(observations)
        begin = perf_counter()
        while len(taken) < POLICY_CALLS and (not taken or perf_counter() - begin < POLICY_S):
            before = perf_counter()
            policy(observations)
            taken.append(perf_counter() - before)
    except Exception as error:
        raise DataError(f"--policy {config.policy}: {words_of(error)}") from error
    return float(np.median(taken))


def has_native(make: EnvMaker, made: gymnasium.Env) -> bool:
    """Tell whether a registered env has a vectorized version of its own.

    An id may leave the env's version out; the env that was made knows which version that is.
    """
    return isinstance(make.env, str) and made.spec is not None and made.spec.vector_entry_point is not None
