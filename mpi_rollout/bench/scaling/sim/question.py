"""What a simulation is asked, and the jobs by which it measures.  Values: nothing is started or read."""

import json
import math
import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import gymnasium
import numpy as np

from mpi_rollout.bench.model import Constants, Workload
from mpi_rollout.bench.plan import arguments_of, in_order
from mpi_rollout.config import RolloutConfig, flag
from mpi_rollout.core.layout import RESULTS, SlotLayout
from mpi_rollout.errors import UsageError
from mpi_rollout.options import MOST

MEASURED, GIVEN = "measured", "given"
MOST_CHECKED = 64  # Ranks of a job on one machine: each is a Python of 100 MB that has to start.
PROBE_ENVS = 4  # On each rank.
MANY_ENVS = (16, 64)  # Times as many on one rank, to tell what the root does for each env.
LEAST_PROBED = 4
SMALL_BYTES, LARGE_BYTES = 8, 65_536  # Of observations, to tell bytes from envs.
SHORTEST_S, LONGEST_S = 0.001, 0.02  # Of a probe's env step: shorter sleeps are not exact, longer ones take long.
JOB_S, LEAST_STEPS, MOST_STEPS = 2.0, 25, 2000
FIGURES = {  # Of `Envs`, as the command line calls them.
    "step_s": "--env-step-s", "step_spread_s": "--env-step-spread-s", "observation_bytes": "--obs-bytes",
    "action_bytes": "--action-bytes",
}  # fmt: skip


@dataclass(frozen=True)
class Envs:
    """What the model has to know of envs, of one each."""

    step_s: float
    step_spread_s: float = 0.0
    observation_bytes: int = 64
    action_bytes: int = 8

    def workload(self, envs_per_rank: int) -> Workload:
        """Messages as this program lays them out."""
        per_step = self.observation_bytes + self.action_bytes + sum(leaf.nbytes for leaf in RESULTS)
        slot = SlotLayout(gymnasium.spaces.Box(0, 255, (self.observation_bytes,), np.uint8), envs_per_rank)
        return Workload(
            envs_per_rank, self.step_s, self.step_spread_s, self.action_bytes, slot.nbytes, envs_per_rank * per_step
        )


@dataclass(frozen=True)
class Setting:
    """One kind of job: how many ranks of what sleeping envs.

    Parameters
    ----------
    is_check
        It is of the envs that were asked for.
    """

    num_ranks: int
    envs_per_rank: int
    env_step_s: float
    env_step_spread_s: float
    observation_bytes: int
    is_check: bool
    repeat: int

    @property
    def num_steps(self) -> int:
        wanted = math.ceil(JOB_S / (self.envs_per_rank * max(self.env_step_s, 1e-6)))
        return min(max(wanted, LEAST_STEPS), MOST_STEPS)

    @property
    def sleep(self) -> tuple[int, float, float]:
        """How one rank sleeps."""
        return self.envs_per_rank, self.env_step_s, self.env_step_spread_s

    def __str__(self) -> str:
        ranks = f"{self.num_ranks} rank{'s' * (self.num_ranks > 1)}"
        return f"{ranks}, {self.envs_per_rank} envs each, {self.observation_bytes} bytes, repeat {self.repeat}"


@dataclass(frozen=True)
class Simulation:
    """A question, as it was put on the command line.

    Parameters
    ----------
    num_ranks
        For which the model is computed, ascending.
    envs
        Of the sleeping kind; None where `env` is to be measured.
    env
        `env`, `env_factory`, `env_kwargs` of a real env; empty without.
    fragment_lengths
        A curve for each, with the policy on the workers.
    constants_from
        "measured", "given", or the file of a study.
    given
        Constants by name, where they are given.
    probe, check
        Numbers of ranks of the jobs that measure the constants, and of those that check the model.

    Raises
    ------
    UsageError
        A value that no question can have.
    """

    num_ranks: tuple[int, ...]
    envs_per_rank: int
    envs: Envs | None
    env: dict[str, Any]
    fragment_lengths: tuple[int, ...]
    constants_from: str
    given: dict[str, float] = field(default_factory=dict)
    probe: tuple[int, ...] = ()
    check: tuple[int, ...] = ()
    repeats: int = 3
    order_seed: int = 0
    launcher: str = ""

    def __post_init__(self):
        self._check_counts()
        for name, value in self.given.items():
            if not 0 <= value < math.inf:
                raise UsageError(f"{flag(name)} must be a number of seconds and at least 0, got {value:g}")
        if (self.envs is None) != bool(self.env):
            raise UsageError("give one of --env-step-s and --env (or --env-factory), got " + "both" * bool(self.env)
                             + "none" * (not self.env))  # fmt: skip
        if self.envs is not None:
            _check_envs(self.envs)
        if len(self.probe) < LEAST_PROBED and self.constants_from == MEASURED:
            told = ",".join(map(str, self.probe))
            raise UsageError(f"--probe must be at least {LEAST_PROBED} numbers of ranks, 1 included, got {told}")
        try:
            shlex.split(self.launcher)
        except ValueError as error:
            raise UsageError(f"--launcher {self.launcher!r}: {error}") from error

    def _check_counts(self) -> None:
        for name, value, least in (
            ("--repeats", self.repeats, 1), ("--order-seed", self.order_seed, 0),
            ("--envs-per-rank", self.envs_per_rank, 1), ("--fragment-length", min(self.fragment_lengths, default=1), 1),
        ):  # fmt: skip
            if value < least:
                raise UsageError(f"{name} must be at least {least}, got {value}")
        if self.envs_per_rank > MOST:
            raise UsageError(f"--envs-per-rank must be at most {MOST}, got {self.envs_per_rank}")
        for name, ranks in (("--check", self.check), ("--probe", self.probe)):
            if max(ranks, default=0) > MOST_CHECKED:
                raise UsageError(f"{name} starts real jobs, of {MOST_CHECKED} ranks at most, got {max(ranks)}")

    @property
    def env_name(self) -> str:
        if not self.env:
            return "sleeping envs"
        return self.env["env"] or self.env["env_factory"]

    def as_dict(self) -> dict[str, Any]:
        """Ready for JSON, and the same after it."""
        return json.loads(json.dumps(asdict(self)))

    def settings(self, envs: Envs) -> list[Setting]:
        """All jobs, repeat by repeat, in another random order in each."""
        kinds = [*self._probes(envs), *self._checks(envs)]
        return [Setting(*kind, repeat) for repeat, kind in in_order(kinds, self.repeats, self.order_seed)]

    def _probes(self, envs: Envs) -> list[tuple[Any, ...]]:
        if self.constants_from != MEASURED:
            return []
        step_s = min(max(envs.step_s, SHORTEST_S), LONGEST_S)
        kinds = [(ranks, PROBE_ENVS, step_s, SMALL_BYTES) for ranks in self.probe]
        # As long a step of more envs: caches are as cold after it.
        kinds += [(1, num * PROBE_ENVS, step_s / num, SMALL_BYTES) for num in MANY_ENVS]
        kinds += [(ranks, PROBE_ENVS, step_s, LARGE_BYTES) for ranks in self.probe[-2:]]
        return [(ranks, num, seconds, 0.0, nbytes, False) for ranks, num, seconds, nbytes in kinds]

    def _checks(self, envs: Envs) -> list[tuple[Any, ...]]:
        kind = self.envs_per_rank, envs.step_s, envs.step_spread_s, envs.observation_bytes, True
        return [(ranks, *kind) for ranks in self.check]

    def command(self, launcher: str, python: str, setting: Setting, out: str) -> list[str]:
        """The command of one job."""
        kwargs = {"step_s": setting.env_step_s, "spread_s": setting.env_step_spread_s}
        config = RolloutConfig(
            env_factory="mpi_rollout.bench.sleeping:SleepingEnv",
            env_kwargs=kwargs | {"observation_bytes": setting.observation_bytes},
            num_envs=setting.num_ranks * setting.envs_per_rank, num_steps=setting.num_steps, trajectories=False,
            out=out, json=True, progress="none", expect_ranks=setting.num_ranks,
        )  # fmt: skip
        start = [*shlex.split(launcher), "-n", str(setting.num_ranks), python, "-m", "mpi_rollout", "run"]
        return [*start, *arguments_of(config)]


def _check_envs(envs: Envs) -> None:
    least = {"step_s": 0.0, "step_spread_s": 0.0, "observation_bytes": 1, "action_bytes": 1}
    for name, bound in least.items():
        value = getattr(envs, name)
        if not bound <= value < math.inf or (name == "step_s" and value == 0):
            than = "more than 0" if name == "step_s" else f"at least {bound:g}"
            raise UsageError(f"{FIGURES[name]} must be {than}, got {value:g}")


def constants_of(given: Mapping[str, float]) -> Constants:
    """Given constants; what is not given is 0."""
    return Constants(**given)


CONSTANT_NAMES = tuple(each.name for each in fields(Constants))
