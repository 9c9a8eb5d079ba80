"""Runs that are refused: one line, and nothing left behind."""

from jobs import Job, Result


def refused(job: Job, *arguments: str, code: int = 64, num_ranks: int | None = None, **extra: str) -> str:
    """Start a run that must be refused in one line, once, with nothing left behind; return the line."""
    before = sorted(job.folder.rglob("*"))
    line = refusal(job(num_ranks, *arguments, **extra), code, is_launched=num_ranks is not None)
    assert sorted(job.folder.rglob("*")) == before
    return line


def refusal(result: Result, code: int = 64, is_launched: bool = False) -> str:
    """The one line with which a run was refused."""
    assert result.code == code, result.err
    assert len(result.messages) == 1 and result.num_tracebacks == 0 and result.out == "", result.err
    assert is_launched or result.err == f"mpi_rollout: {result.messages[0]}\n"  # The launcher has something to say too.
    return result.messages[0]
