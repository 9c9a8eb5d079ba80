"""Reading files of runs, complete ones and unfinished ones, without MPI.  They may be damaged or hostile."""

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from shlex import quote
from typing import Any

import h5py
import numpy as np

from mpi_rollout.config import RolloutConfig
from mpi_rollout.errors import DataError
from mpi_rollout.storage.objects import (
    ContentError,
    Tell,
    attributes_of,
    check_objects,
    check_room,
    count,
    group_of,
    number,
    parsed,
    reading,
    table_of,
    text,
)
from mpi_rollout.storage.schema import EPISODE, FAULT, FORMAT, FORMAT_VERSION, INTERVAL, LIMIT, RANK, digest_of
from mpi_rollout.storage.unmarked import open_unmarked
from mpi_rollout.storage.values import counted_in

ATTEMPTS = 3
OTHERS = {f"{FORMAT}-scaling": "a study", f"{FORMAT}-simulation": "a simulation", f"{FORMAT}-compare": "a comparison"}
OURS = {"config", "spaces", "digest", "format_version"}  # Attributes that only files of this program have together.


@contextmanager
def opened(path: str, tell: Tell) -> Iterator[tuple[h5py.File, Tell]]:
    """Open a file of this program that may be damaged, or made to harm; see `objects.reading`.

    Raises
    ------
    DataError
        It is not one; or it cannot be read, here or in the `with` block.
    """
    with reading(path, tell, open_unmarked) as (file, note):
        check_format(attributes_of(file), path)
        check_objects(file, note)
        note("its root group")
        yield file, note


def steadily(path: str, read: Callable[[], Any]) -> Any:
    """Read a file, again if that failed while it was being written: a run may have been about to change what was read.

    Raises
    ------
    DataError
        It cannot be read, and stays as it is.
    """
    for attempt in range(ATTEMPTS):
        before = _state(path)
        try:
            return read()
        except DataError:
            if attempt + 1 == ATTEMPTS or _state(path) == before:
                raise
        time.sleep(0.5)
    raise AssertionError


def _state(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_size, found.st_mtime_ns


def check_format(attributes: Mapping[str, Any], path: str) -> None:
    """Refuse files of other programs, and of later versions of this one.

    Raises
    ------
    DataError, ContentError
        It is one; or one of this program, and damaged.
    """
    if attributes.get("format") != FORMAT:
        if kind := OTHERS.get(str(attributes.get("format"))):
            raise DataError(f"{path} is {kind}, not a rollout; `python -m mpi_rollout plot {quote(path)}` draws it")
        if len(OURS & attributes.keys()) > 1:
            got = attributes.get("format")
            raise ContentError(f"its attribute format is {got!r:.80}, it should be {FORMAT!r}; the file is damaged")
        raise DataError(f"{path} was not written by {FORMAT}")
    version = count(attributes, "format_version")
    if version not in range(1, FORMAT_VERSION + 1):
        raise DataError(
            f"{path} has format version {version}, this program reads {FORMAT_VERSION}; read it with the version of "
            "mpi_rollout that wrote it"
        )


def check_attributes(attributes: Mapping[str, Any]) -> None:
    """Compare the attributes of the root group with what was written before the first step.

    Raises
    ------
    ContentError
        One is missing or damaged; the message says which, where that can be seen.
    """
    for name in ("config", "spaces", "versions"):
        parsed(attributes, name, dict)
    if not all(isinstance(host, str) for host in parsed(attributes, "hosts", list)):
        raise ContentError("its attribute hosts should be a list of names")
    for name in ("env_spec", "autoreset_mode", "mpi_library", "started", "finished"):
        text(attributes, name)
    for name in ("seed", "num_envs", "num_ranks"):
        count(attributes, name)
    # Files of before 0.1 have none.
    if "digest" in attributes and digest_of(attributes) != attributes["digest"]:
        raise ContentError("the attributes of its root group are not what was written: their digest does not fit")


def leaf_datasets(group: h5py.Group) -> dict[str, h5py.Dataset]:
    """The datasets below a group by path, in alphabetical order."""
    found: dict[str, h5py.Dataset] = {}
    group.visititems(lambda name, item: found.update({name: item}) if isinstance(item, h5py.Dataset) else None)
    return dict(sorted(found.items()))


def num_steps_of(file: h5py.File) -> int:
    """The number of steps that are committed."""
    return count(attributes_of(group_of(file, "trajectories")), "num_steps")


def committed_episodes(file: h5py.File, num_steps: int | None = None) -> np.ndarray:
    """Read the rows of /episodes that lie in committed steps, or in the first `num_steps`.

    A commit writes episodes first: a writer killed amid one leaves rows of steps that do not count.
    """
    num_steps = num_steps_of(file) if num_steps is None else num_steps
    episodes = table_of(file, "episodes", EPISODE)
    return episodes[episodes["start"] + episodes["length"] <= num_steps]


def committed_faults(file: h5py.File, num_steps: int | None = None) -> np.ndarray:
    """Read the rows of /faults of committed steps, or of the first `num_steps`."""
    if num_steps is None and "trajectories" in file:
        num_steps = num_steps_of(file)
    faults = table_of(file, "faults", FAULT) if "faults" in file else np.zeros(0, FAULT)  # Files before 0.1 have none.
    return faults if num_steps is None else faults[faults["step"] < num_steps]


def throughput_tables(file: h5py.File) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The rows of /throughput: intervals, limit, ranks."""
    tables = (("intervals", INTERVAL), ("limit", LIMIT), ("ranks", RANK))
    return tuple(table_of(file, f"throughput/{name}", dtype) for name, dtype in tables)


def identity(tell: Tell, path: str) -> dict[str, Any]:
    """Whose file it is: the configuration of its run, in JSON, and whether that has come to its end."""
    with opened(path, tell) as (file, _):
        attributes = attributes_of(file)
        check_attributes(attributes)
        return {"config": text(attributes, "config"), "complete": bool(text(attributes, "finished").strip())}


def summary(tell: Tell, path: str) -> dict[str, Any]:
    """What is in a file, as JSON-able data."""
    return steadily(path, lambda: _summary(tell, path))


def _summary(tell: Tell, path: str) -> dict[str, Any]:
    with opened(path, tell) as (file, note):
        attributes = attributes_of(file)
        check_attributes(attributes)
        config = RolloutConfig.from_json(attributes.get("config"), path)
        finished = text(attributes, "finished").strip()
        note("its tables")
        found = {
            "file": path,
            "nbytes": os.path.getsize(path),
            "complete": bool(finished),
            "recovered": text(attributes, "recovered") if "recovered" in attributes else "",
            "env": config.env or config.env_factory,
            "config": asdict(config),
            "num_ranks": count(attributes, "num_ranks"),
            "hosts": parsed(attributes, "hosts", list),
            "mpi_library": text(attributes, "mpi_library"),
            "versions": parsed(attributes, "versions", dict),
            "started": text(attributes, "started"),
            "finished": finished,
            "throughput": _throughput(file),
            "faults": [_fault(row) for row in committed_faults(file)],
        }
        if "trajectories" in file:
            found |= _trajectories(file)
        return found


def _fault(row: np.void) -> dict[str, Any]:
    return {
        "env_index": int(row["env_index"]),
        "step": int(row["step"]),
        "message": row["message"].decode(errors="replace"),
    }


def _throughput(file: h5py.File) -> dict[str, Any]:
    attributes = attributes_of(group_of(file, "throughput"))
    _, limit, _ = throughput_tables(file)
    env_steps, seconds = count(attributes, "env_steps"), float(number(attributes, "seconds"))
    with np.errstate(all="ignore"):  # Nothing is known of the numbers in a file.
        ratios = limit["rollout_env_steps_per_s"] / limit["limit_env_steps_per_s"]
    return {
        "env_steps": env_steps,
        "seconds": seconds,
        "env_steps_per_s": env_steps / seconds if seconds else 0.0,
        "ratio_to_limit": [float(ratio) for ratio in ratios if np.isfinite(ratio)],
    }


def _trajectories(file: h5py.File) -> dict[str, Any]:
    num_steps = num_steps_of(file)
    episodes = committed_episodes(file)
    over = episodes[episodes["terminated"] | episodes["truncated"]]
    datasets = leaf_datasets(file["trajectories"])
    for name, dataset in datasets.items():
        if not dataset.shape or len(dataset) < num_steps:
            raise ContentError(f"trajectories/{name} has fewer rows than the {num_steps:,} steps that are committed")
        check_room(file, f"trajectories/{name}", dataset, num_steps, room=0)
    return {
        "num_steps": num_steps,
        "datasets": {name: {"shape": list(ds.shape), "dtype": str(ds.dtype)} for name, ds in datasets.items()},
        "wrong_values": [wrong for name, ds in datasets.items() for wrong in counted_in(name, attributes_of(ds))],
        "num_transitions": int(episodes["length"].sum()),
        "episodes": {
            "ended": len(over),
            "terminated": int(episodes["terminated"].sum()),
            "truncated": int(episodes["truncated"].sum()),
            "under_way": len(episodes) - len(over),
            "return": _spread(over["return"]),
            "length": _spread(over["length"]),
        },
    }


def _spread(values: np.ndarray) -> dict[str, float | None] | None:
    """Figures of the finite values, None where there are none; and how many are not finite."""
    if not len(values):
        return None
    is_finite = np.isfinite(values)
    finite = values[is_finite]
    figures = {"min": np.min, "median": np.median, "mean": np.mean, "max": np.max}
    with np.errstate(over="ignore"):
        spread = {name: float(figure(finite)) if len(finite) else None for name, figure in figures.items()}
    return spread | {"not_finite": int(np.count_nonzero(~is_finite))}
