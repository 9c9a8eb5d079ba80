"""Studies that are measured in parts, a number of ranks each, as batch jobs of their own do; put together here.

A part is a file of the whole study with the samples of one number of ranks, in the folder `<out>.parts`.
"""

import os
from pathlib import Path

from mpi_rollout.bench.scaling import report
from mpi_rollout.bench.scaling.file import StudyFile, read_study
from mpi_rollout.bench.scaling.samples import joined
from mpi_rollout.bench.scaling.study import differences
from mpi_rollout.bench.tables import told_facts
from mpi_rollout.bench.workplace import claimed, now
from mpi_rollout.errors import DataError, Interrupted, RolloutError, StorageError, counted
from mpi_rollout.storage.output import check_folder


def part_of(out: str, num_ranks: int) -> str:
    """The file of one number of ranks, of the study in the file `out`."""
    return f"{out}.parts/{num_ranks}.h5"


def make_folder(part: str) -> None:
    """Make the folder of parts, if this is the first.

    Raises
    ------
    StorageError
        It cannot be made.
    """
    try:
        Path(part).parent.mkdir(exist_ok=True)
    except OSError as error:
        raise StorageError(f"cannot make the folder {Path(part).parent}: {error.strerror}") from error


def files_of(out: str) -> list[str]:
    """All files that there are of a study: its parts, and then what was put together before."""
    parts = sorted(Path(f"{out}.parts").glob("*.h5"), key=lambda path: (len(path.name), path.name))
    return [*map(str, parts), *[out] * os.path.lexists(out)]


def gathered(out: str) -> StudyFile | None:
    """What there is of a study in all its files; None if there are none.

    Raises
    ------
    DataError
        They are not of one study on machines of one kind, or one cannot be read.
    """
    paths = files_of(out)
    if not paths:
        return None
    files = [_readable(path) for path in paths]
    for path, each in zip(paths[1:], files[1:], strict=True):
        _check_same(paths[0], files[0], path, each)
    first = min(files, key=lambda each: each.origin["started"])
    samples = joined([each.samples for each in files])
    return StudyFile(first.study, first.facts, first.origin, samples)


def _readable(path: str) -> StudyFile:
    try:
        return read_study(path)
    except DataError as error:
        raise DataError(f"{error}; move it away, and the command that began the study measures it again") from error


def _check_same(first_path: str, first: StudyFile, path: str, other: StudyFile) -> None:
    differing = differences(first.study, other.study) + told_facts(first.facts, other.facts)
    if differing:
        raise DataError(
            f"{first_path} and {path} cannot be put together: {'; '.join(differing)}; remove one of them and measure "
            "it again like the others (under SLURM, --constraint chooses nodes of one kind)"
        )


def gather(out: str) -> int:
    """Put the parts of a study together, print what it shows; return the exit code.

    Raises
    ------
    RolloutError
        Some jobs failed; the message says how many.
    Interrupted
        Some numbers of ranks are missing; what there is was put together.
    DataError, StorageError
        There is nothing to put together, or it is not of one study; or it cannot be written.
    """
    check_folder(out)
    with claimed(out):
        file = gathered(out)
        if file is None:
            raise DataError(f"there is nothing of a study in {out}.parts; `scaling strong --only R` writes into it")
        file.write(out, now())
    print("\n".join([*report.lines(file), f"file: {out}"]))
    missing = [point for point in file.study.order() if point not in file.samples.points]
    if missing:
        ranks = ", ".join(map(str, sorted({point.num_ranks for point in missing})))
        total = len(file.study.order())
        raise Interrupted(
            f"{len(missing)} of {counted(total, 'job')} are missing, of {ranks} ranks; the command that began the "
            f"study does what "
            "is left"
        )
    return check_failures(file, out)


def check_failures(file: StudyFile, out: str) -> int:
    """0, if no job failed; otherwise RolloutError."""
    if file.samples.num_failed:
        raise RolloutError(
            f"{file.samples.num_failed} of {counted(len(file.samples.jobs), 'job')} failed; {out} has their errors, "
            f"and the "
            "command that began the study does them again with --redo-failed"
        )
    return 0
