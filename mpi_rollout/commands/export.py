"""`export`: the data of runs as files that other programs read.

Files are read and written in child processes, as damaged files are; this process sees to the new name: it is there when
all is written, else nothing is.  Under `mpirun` each rank writes a share of a Minari data set.
"""

import json
import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from shlex import quote
from time import perf_counter, sleep
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

from mpi_rollout.commands.checking import check_folder
from mpi_rollout.config import RolloutConfig
from mpi_rollout.data.exports.minari_place import Place, check_id
from mpi_rollout.errors import DataError, Interrupted, RolloutError, StorageError, UsageError
from mpi_rollout.exchange.job_end import all_or_none
from mpi_rollout.exchange.world import ROOT, SingleRankComm, claimed_size
from mpi_rollout.process.host import format_bytes
from mpi_rollout.ranks.agreement import come_together
from mpi_rollout.storage.ownership import give_name, identity, removed, temporary_path, why_no_file
from mpi_rollout.storage.sandbox import in_sandbox
from mpi_rollout.text import counted, printable

if TYPE_CHECKING:
    from mpi4py import MPI

TASKS = "mpi_rollout.data.exports.minari"
Options: TypeAlias = Mapping[str, Any]
Comm: TypeAlias = "MPI.Intracomm | SingleRankComm"


def export_minari(files: Sequence[str], dataset_id: str, options: Options) -> list[str]:
    """Write a Minari data set; return the lines to print, on the root.  **Collective**.

    UsageError if the id is none, or is taken; DataError if a file is missing, damaged, or has no episodes; StorageError
    if the data set cannot be written.
    """
    check_id(dataset_id)
    _check_files(files)
    with _stopped_by_signals():
        if claimed_size()[0] == 1:
            return _export_minari(SingleRankComm(), files, dataset_id, options)
        comm = come_together(RolloutConfig.start_timeout_s)
        with all_or_none(comm):
            return _export_minari(comm, files, dataset_id, options)


def _export_minari(comm: Comm, files: Sequence[str], dataset_id: str, options: Options) -> list[str]:
    start, place = perf_counter(), Place(dataset_id, options["overwrite"])
    try:
        folder = _on_root(comm, place.make)
        arguments = [[*files], folder, {**options, "dataset_id": dataset_id}]

        def task(name: str, *more: int) -> Any:
            return in_sandbox(f"{TASKS}:{name}", files[0], *arguments, *more)

        if comm.size == 1:
            report = task("export")
        else:
            _on_root(comm, lambda: task("plan"))
            _all_do(comm, lambda: task("write_share", comm.rank, comm.size))
            report = _on_root(comm, lambda: task("finish", comm.size))
        _on_root(comm, place.publish)
    finally:
        if comm.rank == ROOT:
            place.remove()
    report |= {"dataset_id": dataset_id, "path": place.path, "seconds": perf_counter() - start}
    if comm.rank != ROOT:
        return []
    lines = [f"folder        {place.path}", f'load it       minari.load_dataset("{dataset_id}")']
    return _lines(dataset_id, report, options["json"], lines + [f"note          {note}" for note in report["notes"]])


def _on_root(comm: Comm, do: Callable[[], Any]) -> Any:
    """Do something on the root while the others wait; return its result on all ranks.  **Collective**."""
    return _all_do(comm, do if comm.rank == ROOT else lambda: None)[ROOT]


def _all_do(comm: Comm, do: Callable[[], Any]) -> list[Any]:
    """Do something on all ranks; return all results, or raise on all ranks what the first one has raised.

    **Collective**.  Ranks that wait sleep, so that others have the cores, and heed signals.
    """
    result, problem = None, None
    try:
        result = do()
    except RolloutError as error:
        problem = error
    if not isinstance(comm, SingleRankComm):
        arrivals = comm.Ibarrier()
        while not arrivals.Test():
            sleep(0.005)
    reports = comm.allgather((result, problem))
    for rank, (_, problem) in enumerate(reports):
        if problem is not None:
            raise type(problem)("" if rank == ROOT else f"rank {rank}: ", *problem.args)
    return [result for result, _ in reports]


def _lines(name: str, report: Mapping[str, Any], as_json: bool, more: Sequence[str]) -> list[str]:
    """Return the lines about an export: what was written, and then `more`."""
    if as_json:
        return [json.dumps(report)]
    cut = f" ({report['unfinished']:,} cut by the end of the data)" if report["unfinished"] else ""
    counts = f"{counted(report['episodes'], 'episode')}{cut}, {counted(report['steps'], 'step')}"
    first = f"{name}: {counts}, {format_bytes(report['nbytes'])}, in {report['seconds']:.1f} s"
    return [printable(line) for line in (first, *more)]


def export_d4rl(files: Sequence[str], out: str, options: Options) -> list[str]:
    """Write a file of D4RL; return the lines to print.  The errors are those of `export_minari`."""
    if claimed_size()[0] > 1:
        raise UsageError("export d4rl is one process; start it without mpirun")
    _check_files(files)
    if os.path.isdir(out):
        raise UsageError(f"{out} is a folder; name a file in it: {quote(os.path.join(out, 'd4rl.h5'))}")
    if os.path.lexists(out) and not options["overwrite"]:
        raise UsageError(f"{out} exists; give another name, or --overwrite")
    if any(os.path.exists(out) and os.path.samefile(file, out) for file in files):
        raise UsageError(f"{out} is the file to export; give the new one another name")
    check_folder(out)
    start, replaces, temporary = perf_counter(), identity(out), temporary_path(os.path.abspath(out), "exporting")
    with _stopped_by_signals(), removed(temporary):
        report = in_sandbox("mpi_rollout.data.exports.d4rl:export", files[0], list(files), temporary, options)
        try:
            give_name(temporary, out, replaces)
        except OSError as error:
            raise StorageError(f"cannot write {out}: {error.strerror or error}") from error
    report |= {"path": out, "seconds": perf_counter() - start}
    return _lines(out, report, options["json"], _d4rl_notes(report))


def _d4rl_notes(report: Mapping[str, Any]) -> list[str]:
    lines = []
    if not report["is_flat"]:
        lines.append("note          observations are nested: D4RL's own loader wants one array of them")
    if report["unknown"]:
        lines.append(
            f"note          of {counted(report['unknown'], 'episode')} the file does not have the last observation: "
            "their last row of next_observations repeats the one before"
        )
    return lines


def _check_files(files: Sequence[str]) -> None:
    for file in files:
        if why := why_no_file(file):
            raise DataError(why)


@contextmanager
def _stopped_by_signals() -> Iterator[None]:
    """Raise Interrupted where a signal asks to stop, so that what is half written is removed."""

    def stop(number: int, _frame: FrameType | None) -> NoReturn:
        raise Interrupted(f"export: stopped by {signal.Signals(number).name}; nothing was written")

    heeded = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, stop) for number in heeded}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler or signal.SIG_DFL)
