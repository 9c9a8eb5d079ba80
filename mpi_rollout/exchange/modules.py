"""Modules that rank 0 imports for all ranks, so that they do not all search and read the same file system.

A rank that imports by itself makes some thousand calls of the file system: Python looks for each module, and reads it.
With thousands of ranks that takes minutes.  So where there are many, MPI starts first.  Then rank 0 imports the program
while the others sleep, and broadcasts the code of what it imported, with the paths of libraries.  What they do not get
so, the ranks import as ever: envs and policies that are not Gymnasium's own, and all where Python or its path is
another one than on rank 0.  Nothing is stored that could become old.
"""

import marshal
import os
import sys
from contextlib import suppress
from importlib import import_module
from importlib.machinery import ExtensionFileLoader, ModuleSpec, PathFinder, SourceFileLoader
from time import monotonic, sleep

from mpi_rollout.exchange.world import ROOT, claimed_size, loaded_mpi, rank_and_host, start_mpi_on_all_ranks

TYPE_CHECKING = False  # `typing` takes time to import.
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from types import CodeType

    from mpi4py import MPI

    Place = tuple[str, list[str] | None]  # The file, and where a package has its modules.

LEAST_RANKS = 16  # With fewer, the file system bears it, and ranks that import side by side start sooner.
LIMIT, START_TIMEOUT_S = "--start-timeout-s", 600.0
LONGEST_S = 0.02  # Between two looks of a rank that waits: its core is free for the root's imports.
OF_WINDOWS = "msvcrt", "nt", "_winapi"  # Python's own modules look for these in all folders of the path.
ELSEWHERE = {"-h", "--help", "--version", "--dry-run"}  # What starts no MPI.
# Not empty from the start of MPI here until the ranks have met in a run: they do not know of each other's errors.
early: list[bool] = []


class Sent(SourceFileLoader):
    """Has the code of a module from the root; reads the file if it is asked again."""

    codes: "dict[str, CodeType]" = {}

    def get_code(self, fullname: str) -> "CodeType | None":
        return self.codes.pop(fullname, None) or super().get_code(fullname)


class SentFinder:
    """Finds modules where the root found them."""

    def __init__(self, places: "dict[str, Place]", codes: "dict[str, CodeType]"):
        self._places, Sent.codes = places, codes

    def find_spec(self, name: str, path: "Sequence[str] | None" = None, target: object = None) -> ModuleSpec | None:
        if name not in self._places:
            return None
        file, locations = self._places[name]
        loader = Sent(name, file) if name in Sent.codes else ExtensionFileLoader(name, file)
        spec = ModuleSpec(name, loader, origin=file)
        spec.submodule_search_locations, spec.has_location = locations, True
        return spec


def is_run(arguments: "Sequence[str]") -> bool:
    """Tell whether these words of a command line begin a run over MPI."""
    is_named = arguments[:1] in ([], ["run"]) or arguments[0].startswith("-")
    return is_named and not ELSEWHERE & {*arguments}


def are_sent(arguments: "Sequence[str]") -> bool:
    """Tell whether rank 0 sends modules for these words of a command line.  All ranks must come to the same answer.

    Variables of the environment may not be the same on all hosts; the words are.
    """
    is_guarded = "OMPI_MCA_mpi_ft_enable" in os.environ  # `launcher.guard` forks, which comes before MPI.
    least = {"yes": 2, "no": sys.maxsize}.get(typed(arguments, "--send-imports"), LEAST_RANKS)
    return is_run(arguments) and not is_guarded and claimed_size()[0] >= least


def typed(arguments: "Sequence[str]", option: str) -> str:
    """Return the value that an option has on a command line, which is not parsed yet; "" without it."""
    pairs = [
        (*word.partition("="), following) for word, following in zip(arguments, [*arguments[1:], ""], strict=False)
    ]
    return next((value if sign else following for name, sign, value, following in pairs[::-1] if name == option), "")


def send(load: "Callable[[], None]", arguments: "Sequence[str]") -> bool:
    """Start MPI, and have on all ranks what `load` imports on the root.  **Collective**.

    Returns False on ranks that must import by themselves.
    """
    try:
        timeout_s = float(typed(arguments, LIMIT))
    except ValueError:  # It is not given, or will be refused.
        timeout_s = START_TIMEOUT_S
    marks = repr((sys.version, sys.path, sys.flags))
    start_mpi_on_all_ranks(timeout_s, LIMIT)
    early.append(True)
    mpi = loaded_mpi()
    if mpi is None or mpi.COMM_WORLD.size == 1:  # The launcher is another MPI's, which is refused later.
        return False
    comm, packed = mpi.COMM_WORLD, b""
    if comm.rank == ROOT:
        before = {*sys.modules}
        load()
        _load_env(typed(arguments, "--env"))
        packed = marshal.dumps(found(sys.modules.keys() - before))
    _await(comm.Ibcast(bytearray(1), ROOT), comm, timeout_s)
    root_marks, nbytes = comm.bcast((marks, len(packed)), ROOT)
    received = packed if comm.rank == ROOT else bytearray(nbytes)
    comm.Bcast(received, ROOT)
    if comm.rank != ROOT and root_marks == marks:
        sys.meta_path.insert(sys.meta_path.index(PathFinder), SentFinder(*marshal.loads(received)))
        sys.modules |= dict.fromkeys(OF_WINDOWS)  # type: ignore[arg-type]  # Python then looks for them nowhere.
        load()
        for name in OF_WINDOWS:
            del sys.modules[name]
    return bool(root_marks == marks)


def _load_env(env_id: str) -> None:
    """Import the module of an env of Gymnasium's own; what is wrong with it is said when the env is made.

    Not of those with a namespace: they need JAX, whose threads are limited when the env is made.
    """
    from gymnasium.envs.registration import registry

    entry_point = registry[env_id].entry_point if env_id in registry and "/" not in env_id else None
    if isinstance(entry_point, str) and entry_point.startswith("gymnasium."):
        with suppress(Exception):
            import_module(entry_point.partition(":")[0])


def found(names: "Iterable[str]") -> "tuple[dict[str, Place], dict[str, CodeType]]":
    """Return where modules are that were just imported, and the code of those in Python."""
    places: dict[str, Place] = {}
    codes: dict[str, CodeType] = {}
    for name in names:
        spec = getattr(sys.modules[name], "__spec__", None)
        if not isinstance(spec, ModuleSpec) or spec.name != name or spec.origin is None:
            continue  # It made something else of itself.
        locations = spec.submodule_search_locations
        if type(spec.loader) is SourceFileLoader and (code := spec.loader.get_code(name)) is not None:
            codes[name] = code
        if name in codes or type(spec.loader) is ExtensionFileLoader:
            places[name] = spec.origin, None if locations is None else [*locations]
    return places, codes


def _await(request: "MPI.Request", comm: "MPI.Intracomm", timeout_s: float) -> None:
    end, pause_s = monotonic() + timeout_s + comm.rank * 0.01, 0.0
    while not request.Test():
        if monotonic() > end:
            from mpi_rollout.errors import LaunchError
            from mpi_rollout.exchange.job_end import abort
            from mpi_rollout.process.console import say

            late = f"rank {ROOT} has not imported the program within {timeout_s:g} s; give it more time by {LIMIT}"
            say(f"mpi_rollout: {rank_and_host(comm.rank)}: {late}\n")
            abort(comm, LaunchError.exit_code)
        sleep(pause_s)
        pause_s = min(pause_s + 1e-3, LONGEST_S)
