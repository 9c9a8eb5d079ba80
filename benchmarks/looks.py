"""How each kind of system is drawn: one colour, marker and kind of line, the same in all pictures of `benchmarks/`."""

from mpi_rollout.commands import style

KINDS = {  # By the name of a line: the systems that work in the same way, and their look.
    "mpi_rollout": ("mpi-1 mpi-2 mpi-4 mpi-8 mpi-groups mpi-ready MPIVecEnv", style.BLUE, "o", "-"),
    "policy on the ranks": ("", style.SKY, "P", "--"),
    "process pool": ("pool puffer-multi torchrl-parallel rllib-remote sample-factory", style.GREEN, "^", "--"),
    "one process: Sync, Dummy": (
        "sync sb3-dummy puffer-serial tianshou-dummy torchrl-serial DummyVecEnv", style.ORANGE, "s", "-",
    ),
    "a process each: Async, Subproc": (
        "async sb3-subproc tianshou-subproc tianshou-shmem torchrl-collector SubprocVecEnv", style.DARK, "X", ":",
    ),
    "vector_entry_point (NumPy)": ("native", style.PURPLE, "D", "--"),
    "EnvPool (C++)": ("envpool envpool-async", style.RED, "v", "-."),
}  # fmt: skip


def kind_of(system: str) -> str:
    """Return the kind that a system is of, by its name; empty if it has no look."""
    return next((kind for kind, (names, *_) in KINDS.items() if system == kind or system in names.split()), "")


def look(system: str) -> style.Look:
    """Return how a system or a kind is drawn."""
    _, color, marker, line = KINDS[kind_of(system)]
    return {"color": color, "marker": marker, "linestyle": line}
