"""What a simulation is asked, the jobs by which it measures, and the file that holds it.  Nothing is started here.

The file is HDF5, readable with h5py alone:

/           attributes: format, format_version, question (JSON), envs (JSON), constants (JSON) and constants_origin
            (empty where they are measured), constants_used (JSON), constants_used_origin, command, host, cpu_model,
            num_cores, versions, commit, started, updated
/settings   a row for each job that was run: of what envs, `Setting`
/jobs       what it gave, `samples.Job`, in the same order
/curves     computed: a row for each curve and number of ranks, `curves.CurveRow`
/checks     measured beside computed, `curves.Check`
"""

import json
import math
from dataclasses import asdict, dataclass, field, replace

import gymnasium
import numpy as np

from mpi_rollout.bench import tables
from mpi_rollout.bench.model import Constants, Way, Workload
from mpi_rollout.bench.plan import (
    ENV_FIGURES,
    MOST_CHECKED,
    SLEEPING_ENV,
    JobOptions,
    Options,
    as_stored,
    check_least,
    in_order,
)
from mpi_rollout.bench.scaling.samples import Job
from mpi_rollout.bench.workplace import Facts
from mpi_rollout.config import RolloutConfig, flag
from mpi_rollout.core.layout import SlotLayout
from mpi_rollout.errors import ContentError, UsageError, counted
from mpi_rollout.options import MOST

FORMAT, FORMAT_VERSION = "mpi_rollout-simulation", 1
MEASURED, GIVEN = "measured", "given"
PROBE_ENVS = 4  # On each rank.
MANY_ENVS = (16, 64)  # Times as many on one rank, to tell what the root does for each env.
LEAST_PROBED = 4
SMALL_BYTES, LARGE_BYTES = 8, 65_536  # Of observations, to tell bytes from envs.
SHORTEST_S, LONGEST_S = 0.001, 0.02  # Of a probe's env step: shorter sleeps are not exact, longer ones take long.
JOB_S, LEAST_STEPS, MOST_STEPS, LEAST_FRAGMENTS = 2.0, 25, 2000, 4
UNSTORED: Options = {"trajectories": False, "json": True, "progress": "none"}  # Options of each job.


@dataclass(frozen=True)
class Envs:
    """What the model has to know of one env."""

    step_s: float
    step_spread_s: float = 0.0
    observation_bytes: int = 64
    action_bytes: int = 8

    def workload(self, envs_per_rank: int) -> Workload:
        """Return what the model needs to know of a rank's envs, with messages as this program lays them out."""
        slot = SlotLayout(gymnasium.spaces.Box(0, 255, (self.observation_bytes,), np.uint8), envs_per_rank)
        return Workload(envs_per_rank, self.step_s, self.step_spread_s, self.action_bytes, slot.nbytes)


@dataclass(frozen=True)
class Setting:
    """One kind of job: how many ranks of what sleeping envs.

    Parameters
    ----------
    is_check
        It is of the envs that were asked for.
    fragment_length
        Steps between two exchanges.
    """

    num_ranks: int
    envs_per_rank: int
    env_step_s: float
    env_step_spread_s: float
    observation_bytes: int
    is_check: bool
    repeat: int = 0
    fragment_length: int = 1

    @property
    def env_kwargs(self) -> Options:
        """The arguments of `SleepingEnv`."""
        sleep = {"step_s": self.env_step_s, "spread_s": self.env_step_spread_s}
        return sleep | {"observation_bytes": self.observation_bytes}

    @property
    def num_steps(self) -> int:
        wanted = math.ceil(JOB_S / (self.envs_per_rank * max(self.env_step_s, 1e-6)))
        num_fragments = math.ceil(min(max(wanted, LEAST_STEPS), MOST_STEPS) / self.fragment_length)
        return max(num_fragments, LEAST_FRAGMENTS) * self.fragment_length

    @property
    def sleep(self) -> tuple[int, float, float]:
        """What decides how one rank sleeps."""
        return self.envs_per_rank, self.env_step_s, self.env_step_spread_s

    def __str__(self) -> str:
        ranks = counted(self.num_ranks, "rank")
        fragments = f"fragments of {self.fragment_length}, " if self.fragment_length > 1 else ""
        size = f"{self.envs_per_rank} envs each, {self.observation_bytes} bytes"
        return f"{ranks}, {size}, {fragments}repeat {self.repeat}"


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
        A curve for each, beside lockstep.
    inference
        Who chooses the actions of fragments: root or workers.
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
    env: Options
    fragment_lengths: tuple[int, ...]
    constants_from: str
    given: dict[str, float] = field(default_factory=dict)
    probe: tuple[int, ...] = ()
    check: tuple[int, ...] = ()
    jobs: JobOptions = field(default_factory=JobOptions)
    inference: str = "workers"

    def __post_init__(self) -> None:
        self._check_counts()
        for name, value in self.given.items():
            if not 0 <= value < math.inf:
                raise UsageError(f"{flag(name)} must be a number of seconds and at least 0, got {value:g}")
        if (self.envs is None) != bool(self.env):
            given = "both" if self.env else "none"
            raise UsageError(f"give one of --env-step-s and --env (or --env-factory), got {given}")
        if self.envs is not None:
            _check_envs(self.envs)
        if len(self.probe) < LEAST_PROBED and self.constants_from == MEASURED:
            given = ",".join(map(str, self.probe))
            raise UsageError(f"--probe must be at least {LEAST_PROBED} numbers of ranks, 1 included, got {given}")

    def _check_counts(self) -> None:
        check_least("--envs-per-rank", self.envs_per_rank, 1)
        check_least("--fragment-length", min(self.fragment_lengths, default=1), 1)
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

    @property
    def ways(self) -> list[Way]:
        """Lockstep, and fragments."""
        return [self.way_of(length) for length in sorted({1, *self.fragment_lengths})]

    def way_of(self, fragment_length: int) -> Way:
        return Way(fragment_length, fragment_length > 1 and self.inference == "workers")

    @property
    def has_jobs(self) -> bool:
        return bool(self.check) or self.constants_from == MEASURED

    def as_dict(self) -> Options:
        """Return it ready for JSON, and the same after it."""
        return json.loads(json.dumps(as_stored(self)))

    def settings(self, envs: Envs) -> list[Setting]:
        """Return all jobs, repeat by repeat, in another random order in each."""
        kinds = [*self._probes(envs), *self._checks(envs)]
        return [replace(kind, repeat=repeat) for repeat, kind in in_order(kinds, self.jobs)]

    def _probes(self, envs: Envs) -> list[Setting]:
        if self.constants_from != MEASURED:
            return []
        step_s = min(max(envs.step_s, SHORTEST_S), LONGEST_S)
        kinds = [(num_ranks, PROBE_ENVS, step_s, SMALL_BYTES) for num_ranks in self.probe]
        # A step of more envs takes as long: so caches are as cold after it.
        kinds += [(1, times * PROBE_ENVS, step_s / times, SMALL_BYTES) for times in MANY_ENVS]
        kinds += [(num_ranks, PROBE_ENVS, step_s, LARGE_BYTES) for num_ranks in self.probe[-2:]]
        return [Setting(num_ranks, num_envs, env_s, 0.0, size, False) for num_ranks, num_envs, env_s, size in kinds]

    def _checks(self, envs: Envs) -> list[Setting]:
        kind = self.envs_per_rank, envs.step_s, envs.step_spread_s, envs.observation_bytes, True
        lengths = [way.fragment_length for way in self.ways]
        checks = [Setting(num_ranks, *kind) for num_ranks in self.check]
        return [replace(check, fragment_length=length) for length in lengths for check in checks]

    def config(self, setting: Setting, out: str) -> RolloutConfig:
        """Return the run of one job."""
        num_envs = setting.num_ranks * setting.envs_per_rank
        own: Options = {
            "num_envs": num_envs,
            "num_steps": setting.num_steps,
            "expect_ranks": setting.num_ranks,
            "out": out,
            "fragment_length": str(setting.fragment_length),
            "inference": "workers" if self.way_of(setting.fragment_length).on_workers else "root",
        }
        return RolloutConfig(env_factory=SLEEPING_ENV, env_kwargs=setting.env_kwargs, **own, **UNSTORED)


def _check_envs(envs: Envs) -> None:
    least = {"step_s": 0.0, "step_spread_s": 0.0, "observation_bytes": 1, "action_bytes": 1}
    for name, bound in least.items():
        value = getattr(envs, name)
        if not bound <= value < math.inf or (name == "step_s" and value == 0):
            than = "more than 0" if name == "step_s" else f"at least {bound:g}"
            raise UsageError(f"{ENV_FIGURES[name]} must be {than}, got {value:g}")


@dataclass(frozen=True)
class Known:
    """Constants that need no measuring, and in words where they come from."""

    constants: Constants
    origin: str


@dataclass(frozen=True)
class SimulationFile:
    """What a file holds.

    Parameters
    ----------
    envs
        Those of the question, measured where it names a real env.
    known
        Constants that were not measured here; None if they are to be fitted to the samples.
    facts, origin
        As in the file of a study.
    """

    question: Simulation
    envs: Envs
    known: Known | None
    facts: Facts
    origin: dict[str, str]
    samples: tuple[tuple[Setting, Job], ...] = ()

    def write(self, path: str, words: dict[str, str], derived: tables.Tables) -> None:
        """Write it to the disk; `words` and `derived` follow from the rest, and are there for other readers."""
        known = self.known
        attributes: dict[str, str | int] = {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "question": json.dumps(self.question.as_dict(), sort_keys=True),
            "envs": json.dumps(asdict(self.envs)),
            "constants": json.dumps(asdict(known.constants)) if known else "",
            "constants_origin": known.origin if known else "",
        }
        settings, jobs = zip(*self.samples, strict=True) if self.samples else ((), ())
        rows = {"settings": (Setting, settings), "jobs": (Job, jobs)}
        tables.write_study(path, attributes | words | self.facts | self.origin, {**rows, **derived})


def read_simulation(path: str) -> SimulationFile:
    """Read a file of a simulation.

    Raises
    ------
    DataError
        It is not one, or of a version that this program does not know.
    """
    with tables.opened(path, "simulation", ["settings", "jobs"]) as contents:
        tables.check_format(path, contents.attributes, "simulation", FORMAT, FORMAT_VERSION)
        settings, jobs = contents.rows("settings", Setting), contents.rows("jobs", Job)
        if len(settings) != len(jobs):
            raise ContentError(f"it has {len(settings)} settings and {len(jobs)} jobs")
        known = None
        if contents.value("constants", str):
            known = Known(contents.record("constants", Constants), contents.value("constants_origin", str))
        question, envs = contents.study("question", Simulation), contents.record("envs", Envs)
        samples = tuple(zip(settings, jobs, strict=True))
        return SimulationFile(question, envs, known, contents.facts, contents.origin, samples)
