"""Constants of the model from a study's file: what its jobs with a core for each rank show.

Where these are too few, as on a laptop, jobs whose ranks share cores count too, as in `fitting`.
"""

from dataclasses import dataclass

import numpy as np

from mpi_rollout.bench.model import Constants, exchange_parts
from mpi_rollout.bench.scaling.analysis import Analysis, PointFigures
from mpi_rollout.bench.scaling.file import StudyFile, read_study
from mpi_rollout.bench.scaling.report import hosts
from mpi_rollout.bench.statistics import NoFit, non_negative
from mpi_rollout.bench.text import machine
from mpi_rollout.errors import DataError


@dataclass(frozen=True)
class Known:
    """Constants that need no measuring, and in words where they come from."""

    constants: Constants
    origin: str


def known_from_study(path: str) -> Known:
    """Fit a study's exchange: root, alpha and beta.

    One study does not tell more parts apart.  In a weak one bytes grow with the ranks, so beta holds what the root
    does for each rank and env.  In a strong one the envs are always as many: the root's part is taken as theirs.

    Raises
    ------
    DataError
        It is no study, or too small a one.
    """
    file = read_study(path)
    analysis = Analysis(file.study, file.samples)
    points = _points_of(analysis, path)
    columns = np.stack([exchange_parts(each.num_ranks, each.num_envs, each.exchange_bytes) for each in points])
    root_s, alpha_s, beta = non_negative(columns[:, [0, 3, 4]], np.array([each.exchange_s for each in points]))
    is_weak = file.study.kind == "weak"
    constants = Constants(
        root_s=float(root_s) if is_weak else 0.0,
        root_s_per_env=0.0 if is_weak else float(root_s) / file.study.size,
        alpha_s=float(alpha_s),
        beta_s_per_byte=float(beta),
        policy_s_per_env=_policy_s_per_env(file, points),
    )
    ranks = f"1 to {points[-1].num_ranks} ranks"
    if any(point.oversubscribed for point in points):
        ranks += ", more than cores, so that curves tend to be too low,"
    when = file.origin["started"][:10]
    return Known(
        constants,
        f"fitted to the {file.study.kind} study {path}, {ranks} on {machine(hosts(file), file.facts)}, {when}",
    )


def _points_of(analysis: Analysis, path: str) -> list[PointFigures]:
    """Those with a core for each rank, if they carry a fit; else all."""
    for points in (analysis.fit_points, analysis.points):
        try:
            analysis.fit_exchange(points)
            return points
        except NoFit as error:
            reason = error
    raise DataError(f"--constants {path}: its exchange has no fit: {reason}; take a study with more points")


def _policy_s_per_env(file: StudyFile, points: list[PointFigures]) -> float:
    ranks = {point.num_ranks for point in points}
    jobs = [job for job in file.samples.jobs if not job.error and job.num_ranks in ranks]
    return float(np.median([job.policy_s / job.num_steps / job.num_envs for job in jobs]))
