"""Files of runs as somebody might make them who means harm, or knows no better: each is a change to a whole one."""

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import h5py
import numpy as np
from written_data import relist

from mpi_rollout.storage.schema import digest_of

Change = Callable[[h5py.File], None]


def attribute(name: str, value: object, place: str = "/") -> Change:
    """Set an attribute and, as who means harm can do it, the digest of them all."""

    def change(file: h5py.File) -> None:
        file[place].attrs[name] = value
        file.attrs["digest"] = digest_of(dict(file.attrs))

    return change


def link(name: str, target: object) -> Change:
    def change(file: h5py.File) -> None:
        if name in file:
            del file[name]
        file[name] = target

    return change


def dataset(name: str, **options: object) -> Change:
    def change(file: h5py.File) -> None:
        if name in file:
            del file[name]
        file.create_dataset(name, **options)

    return change


def without(name: str) -> Change:
    return lambda file: file.__delitem__(name)


def rows(name: str, number: int) -> Change:
    """Claim rows that are not there."""
    return lambda file: file[name].resize(number, axis=0)


def claim(file: h5py.File) -> None:
    """Claim 2^30 steps, consistently."""
    file["trajectories"].visititems(
        lambda name, item: item.resize(2**30 + name.startswith("obs"), 0) if isinstance(item, h5py.Dataset) else None
    )
    file["trajectories"].attrs.modify("num_steps", np.int64(2**30))


def virtual(name: str) -> Change:
    def change(file: h5py.File) -> None:
        layout, source = h5py.VirtualLayout((2, 3), "f8"), h5py.VirtualSource("other.h5", "data", (2, 3))
        layout[...] = source
        del file[name]
        file.create_virtual_dataset(name, layout)

    return change


def nest(file: h5py.File) -> None:
    """A group that is in itself, in the place of a table."""
    del file["throughput/limit"]
    file["throughput/limit"] = file["throughput"]


CONFIG = {"env": "CartPole-v1"}
OUTSIDE, OTHER = h5py.ExternalLink("other.h5", "/data"), [("other.bin", 0, 8 * 6)]
# What was changed, and words of what is said of it.
REFUSED: dict[str, tuple[Change, str]] = {
    "external link": (link("trajectories/rewards", OUTSIDE), "rewards is a link to another file, other.h5"),
    "external link as table": (link("episodes", OUTSIDE), "/episodes is a link to another file, other.h5"),
    "soft link": (link("episodes", h5py.SoftLink("/faults")), "/episodes is a soft link"),
    "external data": (
        dataset("trajectories/rewards", shape=(2, 3), dtype="f8", external=OTHER), "rewards are in other files"
    ),
    "virtual data": (virtual("trajectories/rewards"), "the data of /trajectories/rewards are in other files"),
    "cycle": (nest, "is a second link to an object"),
    "config of another type": (attribute("config", 7), "its attribute config is 7, it should be text"),
    "config that is no JSON": (attribute("config", "{"), "its attribute config is '{', it should be an object in JSON"),
    "deep JSON": (attribute("config", "[" * 60000), "its attribute config is '[[[["),
    "config without types": (attribute("config", json.dumps(CONFIG | {"num_envs": "x"})), "--num-envs must be a"),
    "unknown option": (attribute("config", json.dumps(CONFIG | {"more": 1})), "had the option --more"),
    "hosts of another type": (attribute("hosts", "[1]"), "hosts should be a list of names"),
    "text that is none": (attribute("started", np.bytes_(b"\xff\xfe")), "its attribute started is "),
    "array": (attribute("num_ranks", [1, 2]), "its attribute num_ranks is array"),
    "negative count": (attribute("num_envs", -3), "its attribute num_envs is -3, it should be a number of 0 or more"),
    "negative steps": (attribute("num_steps", -1, "trajectories"), "its attribute num_steps is -1"),
    "steps of another type": (attribute("num_steps", "x", "trajectories"), "its attribute num_steps is 'x'"),
    "seconds of another type": (attribute("seconds", "x", "throughput"), "its attribute seconds is 'x'"),
    "format": (attribute("format", "other"), "its attribute format is 'other', it should be 'mpi_rollout'"),
    "version": (attribute("format_version", "1"), "its attribute format_version is '1'"),
    "no throughput": (without("throughput"), "there is no throughput"),
    "no limit": (without("throughput/limit"), "there is no throughput/limit"),
    "no episodes": (without("episodes"), "there is no episodes"),
    "episodes as group": (lambda file: (file.__delitem__("episodes"), file.create_group("episodes")), " episodes"),
    "trajectories as dataset": (dataset("trajectories", data=[1]), "there is no trajectories/"),
    "throughput as dataset": (dataset("throughput", data=[1]), "there is no throughput/"),
    "episodes of another dtype": (dataset("episodes", data=[1.0, 2.0]), "episodes should be "),
    "faults of two axes": (dataset("faults", data=[[1], [2]]), "faults should be "),
    "many episodes": (rows("episodes", 2**30), "episodes claims 1,073,741,824 rows"),
    "many steps": (claim, "trajectories/actions claims 1,073,741,824 rows"),
}  # fmt: skip


def craft(path: Path, change: Change) -> None:
    """Change a file."""
    np.arange(6.0).tofile(path.parent / "other.bin")
    with h5py.File(path.parent / "other.h5", "w") as other:
        other["data"] = np.full((2, 3), 4711.0)
    with h5py.File(path, "r+") as file:
        change(file)
    # It may have no place for a list any more.
    with suppress(AttributeError, KeyError, OSError, OverflowError, RuntimeError, TypeError, ValueError):
        relist(path)
