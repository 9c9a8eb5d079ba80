"""Started by `Job.series`: the program once for each line of arguments, in a child forked when all is imported.

A child is in every other way a process of its own: it starts MPI itself, and ends as any other.
"""

import importlib
import os
import pickle
import sys
from pathlib import Path

from mpi_rollout.cli import main

for name in (
    "mpi_rollout.collect.run",
    "mpi_rollout.collect.root",
    "mpi_rollout.storage.output",
    "mpi_rollout.storage.writer",
    "mpi_rollout.commands.inspection",
):
    importlib.import_module(name)


def become(number: int, folder: str, environment: dict[str, str]) -> None:
    """Make this child the process that was asked for, with files for what it says."""
    os.environ.update(environment)
    for descriptor, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(f"{number}.{name}", os.O_WRONLY | os.O_CREAT), descriptor)
    os.chdir(folder)


codes = []
starts = pickle.loads(Path("starts").read_bytes())
for number, (arguments, folder, environment) in enumerate(starts):
    pid = os.fork()
    if pid == 0:
        become(number, folder, environment)
        sys.exit(main(arguments))
    codes.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
Path("codes").write_bytes(pickle.dumps(codes))
