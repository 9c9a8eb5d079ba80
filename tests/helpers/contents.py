"""All that HDF5 files hold, as this Python's h5py reads it: a line of JSON for each, which needs nothing but h5py.

With `--swmr`, of files that somebody writes.
"""

import hashlib
import json
import sys

import h5py
import numpy as np


def contents(path: str, swmr: bool = False) -> dict[str, object]:
    """Return the shape and a digest of the values of each dataset, and all attributes."""
    found: dict[str, object] = {}

    def note(name: str, item: h5py.Dataset | h5py.Group) -> None:
        if isinstance(item, h5py.Dataset):
            values = np.asarray(item[()])
            content = str(values).encode() if values.dtype.hasobject else values.tobytes()
            found[name] = [values.shape, str(values.dtype), hashlib.sha256(content).hexdigest()]
        for attribute, value in item.attrs.items():
            found[f"{name}@{attribute}"] = str(value)

    with h5py.File(path, "r", swmr=swmr, locking=False) as file:
        note("", file)
        file.visititems(note)
    return found


if __name__ == "__main__":
    paths = [argument for argument in sys.argv[1:] if argument != "--swmr"]
    for path in paths:
        print(json.dumps(contents(path, "--swmr" in sys.argv)))
