"""Tell a batch script of which MPI its ranks will be, without starting MPI, which may end a process without launcher.

Three lines: the family of the MPI library that mpi4py loads, its name, and its mpiexec ("-" if none is found).
"""

import shutil
from pathlib import Path

from mpi_rollout.doctor.launch import load_library, vendor_of


def main() -> None:
    library, path = load_library()
    beside = Path(path).parent.parent / "bin" / "mpiexec"
    mpiexec = str(beside) if path and beside.exists() else shutil.which("mpiexec") or "-"
    print(vendor_of(library), library, mpiexec, sep="\n")


if __name__ == "__main__":
    main()
