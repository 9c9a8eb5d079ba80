"""Tuning: which ranks and which mode suit an env on this machine, found by real jobs.

Every way to run it has a job.  Those that are far slower than the fastest are left out; the others have more jobs.
"""

import shlex
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from mpi_rollout.config import RolloutConfig
from mpi_rollout.core.option_values import check_seconds
from mpi_rollout.errors import Option, RolloutError, StorageError
from mpi_rollout.process.console import show
from mpi_rollout.process.host import num_usable_cores
from mpi_rollout.studies.jobs import JobOptions, Options, arguments_of, check_scipy, usable_launcher
from mpi_rollout.studies.scaling import Runner, commands_of, warm_up_of
from mpi_rollout.studies.statistics import Interval, median_interval
from mpi_rollout.studies.study import Point, Sample, Study
from mpi_rollout.studies.study_file import StudyFile, machine_facts, origin, place_and_time
from mpi_rollout.text import aligned, counted

LENGTHS = ("1", "16", "64")  # The lengths of fragments to try, beside auto.
MORE_ENVS = 4  # How many times as many envs are tried: more data a step, so no way to do the same run.
LEAST_RATE = 0.75  # A share of the fastest first job's rate: jobs do not differ by that much.
LEAST_STEPS, MOST_STEPS = 20, 1_000_000
CALIBRATIONS = 3  # The most calibrations: the first one has too few steps to show a rate.
LIMIT_SHARE = 1 / 30  # The share of a job's seconds that each measurement of the limit takes.


def candidates(ranks: Sequence[int], num_envs: int, in_fragments: bool) -> tuple[Point, ...]:
    """Return all ways with these numbers of ranks, ascending; one rank more where the root steps no envs.

    With `in_fragments` the ranks choose the actions, and can do so for several steps at a time.
    """
    most = ranks[-1]
    ways: list[tuple[int, Options]] = [(num_ranks, {}) for num_ranks in ranks]
    if in_fragments and most > 1:
        ways += [(most, {"fragment_length": length}) for length in LENGTHS]
    if most > 1:
        overlapping: list[Options] = [{"num_groups": 2}, {"batch_size": max(most // 2, 1)}]
        ways += [(most, options) for options in overlapping]
        for num_ranks in (most, most + 1) if most > 2 else (most + 1,):
            ways += [(num_ranks, {"root_envs": 0, **options}) for options in overlapping]
    return tuple(
        Point(num_ranks, tuple(options.items()))
        for num_ranks, options in ways
        # `Division` asks for it: each rank that steps envs needs one for each group.
        if (num_ranks - ("root_envs" in options)) * options.get("num_groups", 1) <= num_envs
    )


def _more_envs(study: Study, most: int) -> Point:
    return Point(most, (("num_envs", MORE_ENVS * study.size),))


def _of_size(samples: Sequence[Sample]) -> list[Sample]:
    """Return the samples with the number of envs that was asked for."""
    return [sample for sample in samples if "num_envs" not in dict(sample.point.options)]


@dataclass(frozen=True)
class Rating:
    """A way's rate over its jobs; a tie if it is not known to be slower than the fastest."""

    point: Point
    num_jobs: int
    rate: Interval
    is_tie: bool


def rate_points(samples: Sequence[Sample]) -> list[Rating]:
    """Rate the ways without a failed job, the fastest median first.

    Two are a tie where their intervals overlap: these jobs do not show which is faster.  But a way is no tie if its
    median is below that of another one that is surely slower than the fastest: a wide interval makes it no faster.
    """
    rates: dict[Point, list[float]] = {}
    failed = {replace(sample.point, repeat=0) for sample in samples if sample.error}
    for sample in samples:
        if (point := replace(sample.point, repeat=0)) not in failed:
            rates.setdefault(point, []).append(sample.env_steps_per_s)
    rated = [(point, len(some), median_interval(some)) for point, some in rates.items()]
    rated.sort(key=lambda each: -each[2].median)
    slower = max((rate.median for *_, rate in rated if rate.high < rated[0][2].low), default=0.0)
    return [Rating(*each, each[2].high >= rated[0][2].low and each[2].median > slower) for each in rated]


def choose(ratings: Sequence[Rating]) -> Rating:
    """Return the simplest that ties with the fastest: few options, few ranks."""
    ties = [rating for rating in ratings if rating.is_tie]
    return min(ties, key=lambda each: (len(each.point.options), each.point.num_ranks))


def limit_of(samples: Sequence[Sample], most: int) -> float:
    """Return the env steps per second of bare loops on all ranks at once; 0 where no job measured it."""
    on_all = [each for each in samples if each.point.num_ranks == most]
    limits = [bare for each in on_all if "root_envs" not in dict(each.point.options) for _, bare in each.limit]
    return median(limits) if limits else 0.0


def tune(run: Options, ranks: Sequence[int], trial_s: float, jobs: JobOptions) -> int:
    """Try all ways to run an env, print the results, also where somebody stops it; return the exit code.

    RolloutError if some jobs failed, which was no reason to stop; or the first one, which was.
    """
    check_seconds(Option("trial_s"), trial_s)
    run = run | {"num_steps": LEAST_STEPS, "limit_s": LIMIT_SHARE * trial_s}
    num_envs = run.pop("num_envs")
    ranks = ranks or _usual_ranks(num_envs)
    first = Study("tune", (Point(ranks[-1]),), num_envs, run, jobs)  # Refuses what every job would refuse.
    config = first.config(first.points[0], "run.h5")
    points = candidates(ranks, num_envs, config.runs_ahead)
    if not isinstance(run["env_kwargs"], list):  # It has one element for each env.
        points += (_more_envs(first, ranks[-1]),)
    study = replace(first, points=points)
    if jobs.dry_run:
        show([*commands_of(study, study.points, Path()).values()])
        return 0
    check_scipy()
    launcher = usable_launcher(jobs.launcher)
    with _folder() as folder:
        runner = Runner(StudyFile(study, machine_facts(), origin()), launcher, Path(folder))
        try:
            _try_all(runner, ranks[-1], trial_s)
        finally:
            if runner.file.samples:
                show(lines(runner.file, ranks[-1]))
    if failed := runner.file.failed:
        num_jobs = counted(len(runner.file.samples), "job")
        raise RolloutError(f"{len(failed)} of {num_jobs} failed; the others are in the table")
    return 0


def _usual_ranks(num_envs: int) -> tuple[int, ...]:
    """Return 1, 2, 4, ... and all cores; none has more ranks than envs."""
    cores = num_usable_cores()
    usual = sorted({2**power for power in range(cores.bit_length())} | {cores})
    return tuple(num_ranks for num_ranks in usual if num_ranks <= max(1, num_envs))


def _folder() -> tempfile.TemporaryDirectory:
    """Make a folder here, not in /tmp: jobs write as runs do, to the same disk."""
    try:
        return tempfile.TemporaryDirectory(prefix=".mpi_rollout-tune-", dir=".", ignore_cleanup_errors=True)
    except OSError as error:
        raise StorageError(f"cannot make a folder for the jobs here: {error.strerror}; start it elsewhere") from error


def _try_all(runner: Runner, most: int, trial_s: float) -> None:
    """Do short jobs to see how many steps a trial has, then a job of each way, and more of those that may win."""
    order = runner.file.study.order()
    for _ in range(CALIBRATIONS):
        if _calibrate(runner, most, trial_s) > trial_s / 2:
            break
    runner.run([point for point in order if point.repeat == 0])
    kept, compared = set[Point](), {Point(most), _more_envs(runner.file.study, most)}
    while not (new := compared | _fast(runner.file.samples)) <= kept:  # The first job of the fastest may be chance.
        kept |= new
        runner.run([point for point in order if point in runner.file.done or replace(point, repeat=0) in kept])


def _fast(samples: Sequence[Sample]) -> set[Point]:
    ratings = rate_points(_of_size(samples))
    return {rating.point for rating in ratings if rating.rate.median >= LEAST_RATE * ratings[0].rate.median}


def _calibrate(runner: Runner, most: int, trial_s: float) -> float:
    """Do a job that is in no table, and set how many steps the next ones have; return the seconds that it took."""
    sample, study = runner.warm_up(warm_up_of([Point(most)])), runner.file.study
    if sample is None:
        raise RolloutError(f"the first job failed, -n {most} without more options; try {study.env_name} in a run")
    num_steps = round(min(max(trial_s * sample.num_steps / sample.seconds, LEAST_STEPS), MOST_STEPS))
    runner.file = replace(runner.file, study=replace(study, run=study.run | {"num_steps": num_steps}))
    return sample.seconds


def lines(file: StudyFile, most: int) -> list[str]:
    """Return the results as text: a table, and the command to use."""
    samples = _of_size(file.samples)
    study, ratings = file.study, rate_points(samples)
    where, steps = place_and_time(file.origin["host"], file.facts, (), file.origin["started"]), study.run["num_steps"]
    text = [f"{study.env_name}, {counted(study.size, 'env')}, {counted(steps, 'step')} a job: {where}", ""]
    if not ratings:
        return [*text, *file.failures, "no way to run it gave a result"]
    limit = limit_of(samples, most)
    cells = [("options", "jobs", "env steps/s", "of the fastest", "of the limit")]
    for rating in ratings:
        median = rating.rate.median
        share = f"{median / ratings[0].rate.median:.3f}" + " tie" * (rating.is_tie and rating is not ratings[0])
        of_limit = f"{median / limit:.3f}" if limit else "-"
        cells.append((rating.point.way, str(rating.num_jobs), rating.rate.shown(",.0f"), share, of_limit))
    most_jobs = max(rating.num_jobs for rating in ratings)
    coverage = min(rating.rate.coverage for rating in ratings if rating.num_jobs == most_jobs)
    note = "too few jobs to know how much they differ; give more --repeats"
    if coverage:
        note = (
            f"medians over jobs; the range in brackets holds the true median with a probability of "
            f"{100 * coverage:.0f} %; tie: these jobs do not tell it from the fastest; what had one job was below "
            f"{LEAST_RATE:g} of the fastest; of the limit: of bare loops on {counted(most, 'rank')} at once"
        )
    text += [*aligned(cells), note, *file.failures, "", f"use: {command(study, choose(ratings).point)}"]
    return text + _what_helps(file, most)


def _what_helps(file: StudyFile, most: int) -> list[str]:
    """Say whether more envs and fragments make it faster, on all ranks; what gave no result is left out."""
    rates = {rating.point: rating.rate for rating in rate_points(file.samples)}
    base, more = Point(most), _more_envs(file.study, most)
    pairs = {  # What is compared, and with what.
        f"more envs: --num-envs {MORE_ENVS * file.study.size}": (more, base),
        "fragments: --fragment-length auto instead of 1": (base, Point(most, (("fragment_length", "1"),))),
    }
    text = []
    for name, (point, other) in pairs.items():
        if point in rates and other in rates:
            times, helps = rates[point].median / rates[other].median, rates[point].low > rates[other].high
            text.append(f"{name} {'helps' if helps else 'does not help'}, {times:.2f} times the env steps/s")
    if file.study.config(base, "run.h5").runs_ahead:
        return text
    return [*text, "fragments: need a policy that the ranks run, such as --policy MODULE:make_policy"]


def command(study: Study, point: Point) -> str:
    """Return the command line of a run, for a shell."""
    given = {name: value for name, value in study.run.items() if name not in ("num_steps", "limit_s")}
    arguments = [argument for argument in arguments_of(RolloutConfig(**given)) if "--num-envs=" not in argument]
    words = shlex.join(word for argument in arguments for word in argument.split("=", 1))
    ranks = f"-n {point.num_ranks}"
    start = f"{study.jobs.launcher or 'mpirun'} {ranks} python -m mpi_rollout {words} --num-envs {study.size}"
    return start + point.way.removeprefix(ranks)
