"""The format of HDF5 that files are written in, and what is said of a file in a newer one.

Nothing here imports HDF5: others need the constant for a process that they start.
"""

import re

# The format of HDF5 1.10, of 2016, the first that others can read while it is written (SWMR).  Every HDF5 since then
# reads it.  "latest" is that of the library which writes: what HDF5 2.0 writes so, HDF5 1.10 to 1.14 cannot read, and
# for a virtual dataset over such files they give zeros without an error.
LIBVER = ("v110", "v110")
# HDF5's words for a message or a superblock whose version it does not know.  Where the format has checksums, one that
# fits comes first: such a version is not damage.  Texts lie in heaps, which have none.
UNKNOWN_VERSION = re.compile(r"\b(?:bad|wrong|unknown) (?!.*heap).*\bversion\b")


def is_unknown(error: BaseException | None) -> bool:
    """Tell whether an error of HDF5 says that a file has a newer format than it knows."""
    return UNKNOWN_VERSION.search(str(error)) is not None
