"""Files that a process makes beside an output for a moment; those of killed processes are removed by the next one.

A folder that is made for an output is removed too, if nothing has come into it.
"""

import glob
import os
import re
from contextlib import suppress

_made: list[str] = []


def make_folder(path: str) -> None:
    """Make a folder, if it is not there and can be made, for as long as this command runs or something is in it."""
    with suppress(OSError):
        os.mkdir(path)
        _made.append(path)


def remove_empty_folders() -> None:
    """Remove the folders that were made and are empty."""
    while _made:
        with suppress(OSError):
            os.rmdir(_made.pop())


def temporary_path(path: str, what: str) -> str:
    """Name a file of this process beside `path`, and remove what killed processes of this host left under such names.

    Of processes on another host nobody here knows whether they live: their files stay.
    """
    host = os.uname().nodename
    for left in glob.glob(f"{glob.escape(path)}.{what}-{glob.escape(host)}-*"):
        pid = re.search(r"-(\d+)$", left)
        if pid is not None and not os.path.exists(f"/proc/{pid[1]}"):
            with suppress(OSError):
                os.unlink(left)
    return f"{path}.{what}-{host}-{os.getpid()}"
