"""What HDF5 can do here: its versions, and whether others can read a file while it is written."""

import subprocess
import sys

import h5py
import numpy as np

NUM_WRITTEN = 1000
READER = """
import sys, h5py
with h5py.File(sys.argv[1], libver="latest", swmr=True, locking=False) as file:
    print(int(file["data"][:].sum()))
"""


def libraries() -> dict[str, str]:
    """Return the versions of h5py and HDF5."""
    return {"h5py": h5py.__version__, "hdf5": h5py.version.hdf5_version}


def why_not_followed(path: str) -> str:
    """Write a new file as runs do; return what another process says if it cannot read it meanwhile, "" if it can.

    An error of HDF5 or of the system if the file cannot be written.
    """
    with h5py.File(path, "x", libver="latest", locking=False) as file:
        data = file.create_dataset("data", (0,), np.int64, maxshape=(None,), chunks=(512,))
        file.swmr_mode = True
        data.resize((NUM_WRITTEN,))
        data[:] = 1
        file.flush()
        answer = _read_elsewhere(path)
    return "" if answer == str(NUM_WRITTEN) else answer


def _read_elsewhere(path: str) -> str:
    """Read the file in another process, for this one would get the data from memory; return that one's last line."""
    command = [sys.executable, "-c", READER, path]
    try:
        reader = subprocess.run(command, capture_output=True, text=True, timeout=5)
    except subprocess.TimeoutExpired:
        return "no end within 5 s"
    return next(iter(reversed((reader.stdout.strip() or reader.stderr.strip()).splitlines())), "it said nothing")
