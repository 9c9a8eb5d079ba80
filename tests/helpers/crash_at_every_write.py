"""Started by crashes.py with killer.c preloaded: a small run for each of many writes, killed or refused there.

Each run and each look at what it left is a child, forked when all is imported.  Prints a line of JSON for each.
"""

import ctypes
import json
import os
import signal
import sys
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import h5py
import numpy as np
import numpy.ma  # NumPy imports it in every child, where it is not there yet.
from gymnasium import spaces
from written_data import SMALL, Feed, ending

from mpi_rollout.errors import RolloutError, StorageError
from mpi_rollout.storage.recovery import recover
from mpi_rollout.storage.schema import leaf_datasets
from mpi_rollout.storage.untrusted import open_unmarked

PICTURES = spaces.Box(0, 255, (160, 160, 3), np.uint8)  # Of 77 kB: each env has chunks of its own.
RUNS = {  # space, envs, rows of a block, steps, after which all are handed over
    "nested": (SMALL, 4, 2, 3, (1,)),
    "packed": (PICTURES, 2, 2, 3, (1,)),  # Chunks that are not full are not packed.
    "continued nested": (SMALL, 4, 4, 9, (3, 5)),
    "continued packed": (PICTURES, 2, 2, 4, (1,)),
}
CONTINUED = "continued nested", "continued packed"  # After so many steps; a first start has ended in good order.

HOWS = {"whole": 0, "torn": 1, "full": 2, "broken": 3}  # What killer.c does at a write.
# The first write that it does something at, and how far it is from one to the next.
PLACES = {
    ("nested", "whole"): (1, 1), ("nested", "torn"): (2, 3), ("packed", "whole"): (1, 8),
    ("continued nested", "whole"): (1, 6), ("continued packed", "whole"): (1, 6),
    ("continued nested", "full"): (1, 12), ("continued nested", "torn"): (2, 5),
    ("nested", "full"): (1, 3), ("nested", "broken"): (2, 3),
}  # fmt: skip
FAILS = 2  # From this one on, only the writes at the run's end count.
PATIENCE_S = 100
SEEN: dict[frozenset[tuple[str, bytes]], tuple[list[str], int]] = {}  # What was said of files with these bytes.
KILLER = ctypes.CDLL(os.environ["LD_PRELOAD"])


def feed_of(kind: str) -> Feed:
    space, num_envs, *_ = RUNS[kind]
    return Feed(space, num_envs, compression="gzip", bits=3) if "packed" in kind else Feed(space, num_envs)


def begin(kind: str) -> None:
    """The first start of a run that is continued, which ends in good order."""
    *_, num_rows, _, (num_past, *_) = RUNS[kind]
    writer = feed_of(kind).writer("run.h5", num_rows)
    for _ in feed_of(kind).fill(writer, num_past, {num_past}):
        pass
    writer.finish(ending(num_past, complete=False))


def run(kind: str, arm: Callable[[], None], is_at_end: bool, report: int) -> None:
    """A run; says what is committed as soon as it knows, and how it ended.  Writes are counted from `arm` on."""
    *_, num_rows, num_steps, handed_over = RUNS[kind]
    feed, num_past = feed_of(kind), handed_over[0] if kind in CONTINUED else None
    if not is_at_end:
        arm()
    try:
        writer = feed.writer("run.h5", num_rows, num_past=num_past)
        for _ in feed.fill(writer, num_steps, {*handed_over, num_steps}, num_past or 0):
            writer.drain()
            os.write(report, f"committed {writer.num_committed}\n".encode())
        if is_at_end:
            arm()
        writer.finish(ending(num_steps))
    except StorageError as error:
        os.write(report, f"failed {error}\n".encode())
        os._exit(error.exit_code)  # As a run leaves.
    os.write(report, b"complete\n")


def look(kind: str, report: int) -> None:
    """What can be recovered of a killed run: its steps, and whether they are what they must be."""
    try:
        num_steps = recover(lambda doing: None, "run.h5.part", "recovered.h5", "temporary")["num_steps"]
    except RolloutError as error:
        os.write(report, f"refused {error}\n".encode())
        return
    expected, how = feed_of(kind).expected(num_steps), ""
    with h5py.File("recovered.h5") as file, open_unmarked("run.h5.part") as part:
        for name, dataset in leaf_datasets(file["trajectories"]).items():
            assert dataset[...].tobytes() == expected[name].tobytes(), name
            try:
                rows = part["trajectories"][name][: len(dataset)]
            except OSError:
                how = " without HDF5's index"
                continue
            assert rows.tobytes() == expected[name].tobytes(), f"{name} in the part"
    if kind in CONTINUED and not how:
        go_on(kind, num_steps)
    os.write(report, f"recovered {num_steps}{how}\n".encode())


def go_on(kind: str, num_past: int) -> None:
    """The start after the one that was killed: the run is complete, with all that it must have."""
    *_, num_rows, num_steps, _ = RUNS[kind]
    writer = feed_of(kind).writer("run.h5", num_rows, num_past=num_past)
    for _ in feed_of(kind).fill(writer, num_steps, {num_steps}, num_past):
        pass
    writer.finish(ending(num_steps))
    expected = feed_of(kind).expected(num_steps)
    with h5py.File("run.h5") as file:
        for name, dataset in leaf_datasets(file["trajectories"]).items():
            assert dataset[...].tobytes() == expected[name].tobytes(), f"{name} in the end"


def in_fork(task: Callable[[int], None]) -> tuple[list[str], int]:
    """Call a task in a child; return what it reported, and how it ended."""
    source, report = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(source)
        signal.alarm(PATIENCE_S)
        try:
            task(report)
        except BaseException as error:
            os.write(report, f"failed {type(error).__name__}: {error}\n".encode())
            os._exit(1)
        os._exit(0)
    os.close(report)
    with os.fdopen(source) as file:
        lines = file.read().splitlines()
    return lines, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def look_once(kind: str) -> tuple[list[str], int]:
    """Look at what a run left, unless one before it has left the very same bytes: what is said of them is the same."""
    left = frozenset((path.name, sha256(path.read_bytes()).digest()) for path in Path().iterdir())
    if left not in SEEN:
        SEEN[left] = in_fork(lambda report: look(kind, report))
    return SEEN[left]


def main(kind: str, how: str) -> None:
    """Do a run for each of these writes, with something that happens there; the last one comes to its end."""
    first, step = PLACES[kind, how]
    past, least = b"", 0
    if kind in CONTINUED:
        assert in_fork(lambda report: begin(kind)) == ([], 0)
        past, least = Path("run.h5.part").read_bytes(), RUNS[kind][4][0]
    for number in range(first, 1000, step):
        for path in Path().iterdir():
            path.unlink()
        if past:
            Path("run.h5.part").write_bytes(past)

        def struck(report: int, number: int = number) -> None:
            def arm() -> None:
                KILLER.killer_arm(ctypes.c_long(number), ctypes.c_long(HOWS[how]), report)

            run(kind, arm, HOWS[how] >= FAILS and not past, report)

        said, code = in_fork(struck)
        committed = [int(line.split()[1]) for line in said if line.startswith("committed")]
        write = [line for line in said if line.startswith("write")]
        outcome = {
            "how": how,
            "number": number,
            "committed": max(committed, default=least),
            "write": write,
            "code": code,
        }
        outcome["ended"] = said[-1]
        if code == 0:
            print(json.dumps(outcome | {"said": said[-1:]}), flush=True)
            return
        outcome["said"], outcome["look"] = look_once(kind)
        print(json.dumps(outcome), flush=True)


if __name__ == "__main__":
    for how in sys.argv[2:]:
        main(sys.argv[1], how)
