"""The start of the program, before slow imports: handle stop signals, and say why the program cannot start.

Imports take a second, and minutes where thousands of ranks share a file system.  So this module imports only what
Python itself has at hand, and old Pythons can read it.  Before its first line is Python's own start, where no handler
can be.
"""

import os
import sys
from _signal import (  # type: ignore[import-not-found]
    SIG_BLOCK,
    SIG_DFL,
    SIG_IGN,
    SIGINT,
    SIGKILL,
    SIGTERM,
    SIGTTOU,
    SIGUSR1,
    getsignal,
    pthread_sigmask,
    set_wakeup_fd,
    signal,
)
from time import sleep

from mpi_rollout.process.rank_variables import (
    LOCAL_SIZE_VARIABLES,
    claimed_local_size,
    claimed_rank,
    is_launcher,
    is_of_srun,
    number_in,
    variable,
)

STOPPED, WRONG_LAUNCH = 75, 78  # As in `errors`, which takes time to import.
ENDED = 1  # srun reports the largest code of a rank: this leaves it that of the rank that has said why.
ROOT_FIRST_S = 2.0  # The rank that says why comes first: when another one leaves, the launcher ends all of them.
LOOKS = 100
NAMES = {SIGINT: "SIGINT", SIGTERM: "SIGTERM", SIGUSR1: "SIGUSR1"}
LEAST = {"numpy": (1, 26), "gymnasium": (1, 1), "h5py": (3, 11), "tqdm": (4, 60), "mpi4py": (4, 0)}  # As in setup.cfg.
PACKAGES = ("numpy", "gymnasium", "h5py", "tqdm")  # Not mpi4py: one rank runs without it.
NODES_OF_STEP = "SLURM_STEP_NUM_NODES"
PR_SET_PDEATHSIG = 1  # linux/prctl.h
_owner = 0  # The process that heeds signals.
_leaving: "list[int]" = []


def end_with_launcher() -> None:
    """Let the kernel kill this process when its launcher ends.  Call it before slow imports.

    It does so only where the launcher itself is the parent.  A parent with another name may be a wrapper script, or a
    program that is meant to leave this process behind; the end of such a parent says nothing about the launcher.

    No Python thread can do that: none runs while an env is in C code that holds the interpreter's lock.
    """
    parent = os.getppid()
    if is_launcher(parent):
        end_with(parent)


def end_with(parent: int) -> None:
    """Let the kernel kill this process when its parent ends; at once, if it is `parent` no more."""
    from ctypes import CDLL

    CDLL(None).prctl(PR_SET_PDEATHSIG, SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), SIGKILL)


def leave(code: int, words: str, descriptor: int = 2) -> None:
    """End this process at once.  Rank 0 says why; another rank does so if no other has."""
    _leaving.append(code)
    if len(_leaving) > 1:  # The thread of `HeardInC` and the main thread have both heard of it.
        sleep(60)
    place = speaker()
    if place is None:
        os._exit(code)
    try:
        os.write(descriptor, f"mpi_rollout: {place}{words}\n".encode(errors="backslashreplace"))
    finally:
        _leave_alone(code)


def speaker() -> "str | None":
    """Return what the message of a rank that leaves begins with; None if another rank has said it.

    Rank 0 speaks first, since launchers end the others when one has left.  So another rank waits for that; and if it
    has to leave without it, it speaks itself.  Signals end this process no more.
    """
    ended: list[int] = []
    for number in NAMES:  # Launchers deliver one Ctrl-C twice; and `_others_leave` looks for it.
        try:
            signal(number, SIG_IGN)
        except ValueError:  # Python refuses in other threads than the main one.
            from ctypes import CDLL, c_void_p

            CDLL(None).signal(int(number), c_void_p(int(SIG_IGN)))
        else:
            if number == SIGTERM:  # The launcher's: another rank has left.
                signal(number, lambda number, _frame: ended.append(number))
    rank = claimed_rank()
    if not rank:
        return ""
    sleep(ROOT_FIRST_S)
    for _ in range(LOOKS):  # Of those that wait here the first one speaks, and the others leave after it.
        if ended or _has_lost_one():
            return None
        if not _are_leaving(_others_here()[0]):
            return f"rank {rank} ({os.uname().nodename}): "
        sleep(ROOT_FIRST_S / LOOKS)
    return None


def _leave_alone(code: int) -> None:
    """Leave so that the launcher ends the others, too: before MPI's start, MPICH's does so after a signal only."""
    looks = LOOKS if number_in(LOCAL_SIZE_VARIABLES[:1]) > 1 else 0
    for _ in range(looks):
        if _others_leave():
            break
        sleep(ROOT_FIRST_S / LOOKS)
    else:
        if looks:
            os.kill(os.getpid(), SIGKILL)
    os._exit(code)


def _others_leave() -> bool:
    """Tell whether each other rank of this host has left or is in `leave` itself; True where that cannot be seen."""
    before, after = _others_here()
    return not is_launcher(os.getppid()) or all(_are_leaving([rank]) for rank in before + after)


def _has_lost_one() -> bool:
    """Tell whether another rank of this host has left; False where wrapper scripts stand between it and this one."""
    return is_launcher(os.getppid()) and sum(map(len, _others_here())) + 1 < claimed_local_size()


def _others_here() -> "tuple[list[str], list[str]]":
    """Return the ranks of this host that its launcher has started before this one, and after it; without those gone."""
    launcher, own = os.getppid(), str(os.getpid())
    try:
        with open(f"/proc/{launcher}/task/{launcher}/children") as file:
            ranks = file.read().split()
        return ranks[: ranks.index(own)], ranks[ranks.index(own) + 1 :]
    except (OSError, ValueError):  # The launcher has left just now; or the system does not tell.
        return [], []


def _are_leaving(ranks: "list[str]") -> bool:
    """Tell whether one of these is in `leave`, or has left just now."""
    try:
        return any(_ignored(rank) >> (SIGUSR1 - 1) & 1 for rank in ranks)
    except OSError:
        return True


def _ignored(pid: str) -> int:
    """Return the signals that a process ignores, as a mask."""
    with open(f"/proc/{pid}/status") as file:
        return int(next(line for line in file if line.startswith("SigIgn:")).split()[1], 16)


def heed_signals() -> None:
    """Install handlers: a stop signal ends this process with exit code 75 and one line.

    For the program, and for a fork that goes on in its place.  In a trainer the handlers are its user's.
    """
    global _owner
    _owner = os.getpid()
    for number in NAMES:
        if getsignal(number) != SIG_IGN:  # A shell ignores it in the background, nohup always.
            signal(number, _stop)


def is_heeding() -> bool:
    """Tell whether it is still this module that heeds signals in this process."""
    return getsignal(SIGTERM) is _stop


def _stop(number: int, _frame: object) -> None:
    if os.getpid() != _owner:  # A child that somebody has forked.
        die_by_signal(number)
    else:
        _leave_by(number)


def die_by_signal(number: int) -> None:
    """End this process as a signal does that nobody handles."""
    signal(number, SIG_DFL)
    os.kill(os.getpid(), number)


def _leave_by(number: int) -> None:
    if number == SIGTERM and is_of_srun() and (claimed_rank() or _has_lost_one()):
        # srun sends it to all ranks, of which rank 0 speaks; or when a rank has left, which has said why.
        sleep(ROOT_FIRST_S)  # Rank 0 looks who is here.
        os._exit(ENDED)
    words = f"stopped by {NAMES[number]} before the first step; give the same command again"
    if number == SIGTERM and is_of_srun() and number_in((NODES_OF_STEP,)) > 1:
        words += ", unless a rank on another host has said why it left"  # srun sends the same then.
    terminal = silent_terminal(number)
    if number == SIGTERM and not terminal and variable("OMPI_COMM_WORLD_RANK"):
        sleep(0.3)  # Open MPI's launcher also sends it, and soon SIGKILL, when another rank has left and said why.
    leave(STOPPED, words, terminal or 2)


def end_after_loss(number: int) -> None:
    """End this process if srun has sent this signal because another rank of the host is gone.

    srun itself ends ranks that wait for the lost one after `KillWait` alone, which is half a minute.
    """
    if number == SIGTERM and is_of_srun() and _has_lost_one():
        os.kill(os.getpid(), SIGKILL)


def silent_terminal(number: int) -> int:
    """Open the terminal on which nothing of what ranks print is shown after a signal; return 0 if there is none.

    After Ctrl-C, Open MPI's mpirun sends its ranks SIGTERM, and passes nothing on any more.
    """
    if number != SIGTERM or not variable("OMPI_COMM_WORLD_RANK"):
        return 0
    try:
        terminal = os.open(f"/proc/{os.getppid()}/fd/2", os.O_WRONLY | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return 0
    if os.isatty(terminal):
        pthread_sigmask(SIG_BLOCK, [SIGTTOU])  # `stty tostop` would suspend this process by it.
        return terminal
    os.close(terminal)
    return 0


class HeardInC:
    """`with HeardInC():` around C code that may wait for long, such as MPI_Init: signals are heeded there too.

    Python calls handlers only between two lines of its main thread.
    """

    def __enter__(self) -> None:
        self._writer = -1
        if is_heeding():
            self._begin()

    def _begin(self) -> None:
        """Have a thread hear of signals."""
        from threading import Thread

        reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)
        set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        Thread(target=self._listen, args=(reader,), name="signals", daemon=True).start()

    def __exit__(self, *_: object) -> None:
        if self._writer >= 0:
            set_wakeup_fd(-1)
            os.close(self._writer)  # The thread ends.

    def _listen(self, reader: int) -> None:
        numbers = os.read(reader, 1)
        while numbers:
            if numbers[0] in NAMES:
                self._heed(numbers[0])
            numbers = os.read(reader, 1)
        os.close(reader)

    def _heed(self, number: int) -> None:
        _leave_by(number)


def check_python() -> None:
    """Leave if this Python is too old to run the program."""
    if sys.version_info < (3, 11):  # noqa: UP036
        version = f"Python {sys.version_info[0]}.{sys.version_info[1]}"
        leave(WRONG_LAUNCH, f"mpi_rollout needs Python 3.11 or newer; {sys.executable} is {version}{_way_out('')}")


def check_packages() -> None:
    """Leave if this Python is without packages that the program needs."""
    from importlib.util import find_spec

    missing = [name for name in PACKAGES if find_spec(name) is None]
    if missing:
        install = f", or {sys.executable} -m pip install {' '.join(missing)}"
        leave(WRONG_LAUNCH, f"{sys.executable} has no {', '.join(missing)}{_way_out(install)}")
    old = old_packages()
    if old:
        leave(WRONG_LAUNCH, old)


def old_packages() -> str:
    """Return words about installed packages that are older than the program needs; "" without any.

    Their versions are read from the names of what pip and conda note beside them.  To import `importlib.metadata` takes
    50 ms, and the packages longer; and an old one may fail while it is imported.
    """
    from importlib.util import find_spec

    words, install = [], []
    for name, least in LEAST.items():
        spec = find_spec(name)
        found = _versions_beside(name, (spec and spec.origin) or "")
        if found and max(map(_numbers, found)) < least:
            needed = ".".join(map(str, least))
            words.append(f"{name} {max(found, key=_numbers)}, and mpi_rollout needs {needed} or newer")
            install.append(f"'{name}>={needed}'")
    if not words:
        return ""
    way_out = _way_out(f", or {sys.executable} -m pip install {' '.join(install)}")
    return f"{sys.executable} has {'; '.join(words)}{way_out}"


def _versions_beside(name: str, file: str) -> "list[str]":
    """Return the versions of a package, from each `NAME-VERSION.dist-info`; more than one where an old one was left."""
    folder = os.path.dirname(os.path.dirname(file))
    try:
        beside = os.listdir(folder) if folder else []
    except OSError:
        beside = []
    noted = [entry[len(name) + 1 :].rpartition(".")[0] for entry in beside if entry.startswith(f"{name}-")]
    return [version for version in noted if _numbers(version)]


def _numbers(version: str) -> "tuple[int, ...]":
    """Return the first two numbers of a version; () if they are none."""
    parts = version.split("-")[0].split(".")[:2]
    return tuple(map(int, parts)) if len(parts) > 1 and "".join(parts).isdigit() else ()


def _way_out(otherwise: str) -> str:
    environment = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), ".venv")
    if os.path.isfile(os.path.join(environment, "bin", "activate")) and sys.prefix != environment:
        return f"; source {environment}/bin/activate"
    return f"; activate the environment in which mpi_rollout is installed{otherwise}"


def shadowing(error: BaseException, is_named: bool = False) -> str:
    """Return words about a file of the user that Python takes for a module of its own, or of a package; "" without one.

    It was imported, or could not be.  With `is_named` the error says its name: users may mean what they import.
    """
    names = {*sys.stdlib_module_names, *PACKAGES}
    files = [getattr(sys.modules.get(name), "__file__", None) for name in names]
    traceback = error.__traceback__
    while traceback is not None:
        files.append(traceback.tb_frame.f_code.co_filename)
        traceback = traceback.tb_next
    for file in filter(None, files):
        folder, name = os.path.split(file.removesuffix("/__init__.py"))
        name = name.partition(".")[0]
        if name in names and folder in sys.path[:1] and (not is_named or f"'{name}'" in str(error)):
            return f"Python takes {file} for the module {name} that it needs; rename that file, or start elsewhere"
    return ""
