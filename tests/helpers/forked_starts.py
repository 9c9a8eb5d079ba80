"""Started by `Job.series`: runs the program as often as asked, each time in a child forked when all is imported.

A child is in every other way a process of its own: it starts MPI itself, and ends as `forked_process` says.  Each line
of the input names a folder with a series; each line of the output says that the folder has its exit codes.
"""

import importlib
import os
import pickle
import sys
from contextlib import suppress
from pathlib import Path

from forked_process import exit_code, share_with_children

from mpi_rollout.cli import main

for name in (
    "mpi_rollout.collect.run",
    "mpi_rollout.collect.root",
    "mpi_rollout.storage.output",
    "mpi_rollout.storage.writer",
    "mpi_rollout.commands.checking",
    "mpi_rollout.commands.inspection",
    "mpi_rollout.studies.scaling",
):
    importlib.import_module(name)
with suppress(ImportError):  # The extra `studies` may be missing.
    importlib.import_module("scipy.optimize")


def become(prefix: str, arguments: list[str], folder: str, environment: dict[str, str]) -> None:
    """Make this child the process that was asked for, with files for what it says."""
    sys.argv[1:] = arguments
    os.environ.clear()
    os.environ.update(environment)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for descriptor, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(f"{prefix}.{name}", os.O_WRONLY | os.O_CREAT), descriptor)
    os.chdir(folder)


share_with_children()
while series := sys.stdin.readline().rstrip("\n"):
    codes = []
    starts = pickle.loads(Path(series, "starts").read_bytes())
    for number, (arguments, folder, environment) in enumerate(starts):
        pid = os.fork()
        if pid == 0:
            become(f"{series}/{number}", arguments, folder, environment)
            os._exit(exit_code(lambda: sys.exit(main(sys.argv[1:]))))
        codes.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    Path(series, "codes").write_bytes(pickle.dumps(codes))
    print("ended", flush=True)
