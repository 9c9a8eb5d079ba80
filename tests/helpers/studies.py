"""How tests start a scaling study whose launcher starts nothing."""

import shlex
import sys
from collections import Counter

from jobs import HELPERS, Job, Result, Running

from mpi_rollout.studies.study_file import StudyFile, read_study

LAUNCHER = shlex.join([sys.executable, str(HELPERS / "fake_launcher.py")])
STUDY = ("--env", "CartPole-v1", "--num-envs", "8", "--ranks", "2,4", "--repeats", "2", "--out", "study.json")
ALL = Counter({"1": 2, "2": 2, "4": 2})


def _arguments(*arguments: str) -> tuple[str, ...]:
    return "scaling", "strong", *STUDY, "--launcher", LAUNCHER, *arguments


def start(job: Job, *arguments: str, **trouble: str) -> Running:
    """Start a study whose launcher is made up."""
    return job.start(None, *_arguments(*arguments), LOG=str(job.folder / "log"), **trouble)


def study(job: Job, *arguments: str, **trouble: str) -> Result:
    """Do such a study to its end."""
    return job(None, *_arguments(*arguments), LOG=str(job.folder / "log"), **trouble)


def started(job: Job) -> list[str]:
    """The numbers of ranks that the launcher was started with, the warm-up's too."""
    return [line.split()[0] for line in (job.folder / "log").read_text().splitlines()]


def stored(job: Job) -> StudyFile:
    return read_study(str(job.folder / "study.json"))
