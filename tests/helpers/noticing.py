"""What this process notes about envs, for tests that start no job."""

from mpi_rollout.errors import as_flag, spelled
from mpi_rollout.process.notices import NOTICES


def note_only() -> None:
    """Hold the notices from now on, without those of before."""
    NOTICES.held.clear()
    NOTICES.hold()


def noted() -> list[str]:
    return [f"{envs}: {spelled(text, as_flag)}" for text, envs in NOTICES.held.items()]
