"""The line between a trainer and rank 0 of its job, and the memory that holds the arrays of a step.

On one host the line is a Unix socket, and both ends have the memory.  Between hosts it is TCP, and there is none.
A private folder tells rank 0 the addresses and a key.  Each end proves by HMAC that it has the key; nothing is
unpickled before.  A trainer listens to TCP only where ranks may be on other hosts, and hears only the port that rank 0
wrote into the folder: who connects from another one, and says nothing, keeps nobody waiting.
"""

import json
import os
import pickle
import secrets
import select
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import accumulate
from mmap import mmap
from multiprocessing import AuthenticationError, reduction
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from time import perf_counter
from typing import Any, Self

import cloudpickle
import numpy as np

from mpi_rollout.core.columns import RESULTS
from mpi_rollout.core.spaces import Space, leaves
from mpi_rollout.errors import DataError, LaunchError
from mpi_rollout.text import words_of

TRAINER, RANK_0 = "trainer.json", "rank_0"  # Files in the folder.
PROOF_S = 5  # The time that a peer has to prove the key: one that says nothing must not keep others out.
CONNECT_S = 10.0
ANYWHERE = ("192.0.2.1", 9)  # An address to which nothing is sent: the way there tells this host's own.
TCP = {socket.TCP_NODELAY: 1, socket.TCP_KEEPIDLE: 10, socket.TCP_KEEPINTVL: 5, socket.TCP_KEEPCNT: 4}  # In seconds.
ALIGNMENT = 64
ERRORS = (EOFError, OSError)  # The other end is gone.


class Meeting:
    """Where a trainer waits for rank 0, in a `with` statement; an error in it removes the folder.

    Only this user can read the folder.  Where ranks may be on other hosts, it is in the current one, which they see.
    """

    def __init__(self, is_local: bool) -> None:
        try:
            self.folder = mkdtemp(prefix=".mpi_rollout-", dir=None if is_local else os.getcwd())
        except OSError as error:
            raise LaunchError(f"cannot make a folder that the ranks see too: {error}; start in another one") from error
        self._key, name = secrets.token_bytes(32), f"\0mpi_rollout-{secrets.token_hex(8)}"
        self.listeners, hosts, port = [socket.socket(socket.AF_UNIX)], list[str](), 0
        self.listeners[0].bind(name)  # An abstract name: no file is left behind.
        self.listeners[0].listen()
        if not is_local:
            self.listeners.append(socket.create_server(("", 0)))
            hosts, port = [os.uname().nodename, _own_address(ANYWHERE)], self.listeners[1].getsockname()[1]
        told = {"key": self._key.hex(), "host": os.uname().nodename, "name": name, "hosts": hosts, "port": port}
        for file, text in ((TRAINER, json.dumps(told)), (RANK_0, "")):
            with open(os.open(Path(self.folder, file), os.O_CREAT | os.O_WRONLY, 0o600), "w") as opened:
                opened.write(text)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for listener in self.listeners:
            listener.close()
        if kind is not None:  # Else the job's keeper does that.
            rmtree(self.folder, ignore_errors=True)

    def meet(self, listener: socket.socket) -> Connection | None:
        """Return the connection to who has called, if it is rank 0."""
        sock, address = listener.accept()
        with sock:
            if sock.family == socket.AF_UNIX:
                _, uid, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
                is_expected = uid == os.getuid()
            else:
                is_expected = _port(address) == Path(self.folder, RANK_0).read_text()
            return _proved(sock, self._key, begins=True) if is_expected else None


def call_trainer(folder: str) -> Connection:
    """Connect rank 0 to its trainer; LaunchError if that is gone or cannot be reached."""
    try:
        told = json.loads(Path(folder, TRAINER).read_text())
    except OSError as error:
        way_out = "if ranks are on other hosts, give launcher=..., and start where they see the current folder"
        raise LaunchError(f"cannot read the trainer's {error.filename}: {error.strerror}; {way_out}") from error
    for sock in _sockets(told, folder):
        with sock:
            if (connection := _proved(sock, bytes.fromhex(told["key"]), begins=False)) is not None:
                return connection
    tried = " and ".join(f"{host}:{told['port']}" for host in told["hosts"]) or "its socket"
    raise LaunchError(f"{os.uname().nodename} cannot reach the trainer on {told['host']} by {tried}")


def _sockets(told: dict[str, Any], folder: str) -> Iterator[socket.socket]:
    """Yield sockets that have reached what may be the trainer."""
    with suppress(OSError):
        if told["host"] == os.uname().nodename:
            unix = socket.socket(socket.AF_UNIX)
            unix.connect(told["name"])
            yield unix
    for host in told["hosts"]:
        with suppress(OSError):
            address = socket.gethostbyname(host), told["port"]
            sock = socket.socket()
            sock.settimeout(CONNECT_S)
            sock.bind((_own_address(address), 0))
            Path(folder, RANK_0).write_text(_port(sock.getsockname()))
            sock.connect(address)
            yield sock


def _own_address(other: tuple[str, int]) -> str:
    """Return the address of this host that another host sees."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        with suppress(OSError):  # There is no network.
            sock.connect(other)
        return str(sock.getsockname()[0])


def _port(address: tuple[str, int]) -> str:
    return "{}:{}".format(*address)


def _proved(sock: socket.socket, key: bytes, begins: bool) -> Connection | None:
    """Prove the key to the other end and let it prove the key, the one that `begins` first; None if it cannot."""
    sock.settimeout(None)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", PROOF_S, 0))
    connection = Connection(os.dup(sock.fileno()))
    try:
        for prove in (deliver_challenge, answer_challenge) if begins else (answer_challenge, deliver_challenge):
            prove(connection, key)
    except (AssertionError, AuthenticationError, *ERRORS):  # Python 3.11 asserts that it is a challenge.
        connection.close()
        return None
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, 0))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in TCP.items() if sock.family == socket.AF_INET else ():
        sock.setsockopt(socket.IPPROTO_TCP, name, value)
    return connection


_HEADER = struct.Struct("!i")  # As `multiprocessing.connection` frames its messages.


class Channel:
    """One end of the line.

    `job` is a descriptor that is ready when the job has ended: a process that an env has left may keep the line open.
    """

    def __init__(self, connection: Connection, job: int | None = None) -> None:
        self._connection, self.fileno = connection, connection.fileno
        with socket.socket(fileno=os.dup(connection.fileno())) as sock:
            self.is_local = sock.family == socket.AF_UNIX  # Both ends are on this host.
        self._ready = select.poll()
        for descriptor in (connection.fileno(), *([] if job is None else [job])):
            self._ready.register(descriptor, select.POLLIN)
        self.spin_s = 0.0  # How long a wait keeps its core before it sleeps: to wake up takes 40 us.
        self.is_waiting = False  # An exception may be raised now, by a signal handler: the line stays whole.
        # The counts of bytes that were written of the last message, and its size; (none, 0) when its answer has come.
        self._sent: tuple[list[int], int] = [], 0
        self._is_torn = False  # A message was received in part, or the line is closed.

    def close(self) -> None:
        """Close the line, also for a thread that waits for a message, which would keep it open."""
        if not self._connection.closed:
            with socket.socket(fileno=os.dup(self.fileno())) as sock, suppress(OSError):  # The other end is gone.
                sock.shutdown(socket.SHUT_RDWR)
            self._connection.close()

    def send(self, value: object, is_plain: bool = False) -> None:
        """Send a value; `is_plain`: without classes and functions, of which cloudpickle takes those of no module."""
        buffers: list[pickle.PickleBuffer] = []
        dumps: Callable[..., bytes] = pickle.dumps if is_plain else cloudpickle.dumps
        try:
            data = dumps(value, protocol=5, buffer_callback=buffers.append)
        except Exception as error:
            raise _not_picklable(error) from error
        parts = [len(buffers).to_bytes(4, "little") + data, *(bytes(buffer.raw()) for buffer in buffers)]
        self._write(b"".join(piece for part in parts for piece in (_HEADER.pack(len(part)), part)))

    def _write(self, message: bytes) -> None:
        """Write a message; what was written is known too where the handler of a signal raises meanwhile.

        Handlers run between two calls of C alone, and `extend` is one: it notes a count as soon as it has written.
        """
        counts, view, write = list[int](), memoryview(message), partial(os.write, self.fileno())
        self._sent = counts, len(message)
        while (num_written := sum(counts)) < len(message):
            counts.extend(map(write, [view[num_written:]]))

    @property
    def is_asked(self) -> bool:
        """Whether a message was sent, and its answer has not come."""
        counts, nbytes = self._sent
        return 0 < nbytes == sum(counts)

    @property
    def is_whole(self) -> bool:
        """Whether no message is half sent or half received."""
        counts, nbytes = self._sent
        return not self._is_torn and sum(counts) in (0, nbytes)

    def receive(self) -> Any:
        """Receive a value; its arrays belong to the caller.

        DataError if it cannot be unpickled here: the line is whole then.
        """
        self.is_waiting = True
        try:
            until = perf_counter() + self.spin_s
            while not (ready := self._ready.poll(0 if perf_counter() < until else None)):
                pass
        finally:
            self.is_waiting = False
        if all(descriptor != self.fileno() for descriptor, _ in ready):
            raise EOFError("the job has ended")
        receive, self._is_torn = self._connection.recv_bytes, True
        data = receive()
        buffers = [bytearray(receive()) for _ in range(int.from_bytes(data[:4], "little"))]
        self._sent, self._is_torn = ([], 0), False
        try:
            return pickle.loads(memoryview(data)[4:], buffers=buffers)
        except Exception as error:
            raise _not_picklable(error) from error


def _not_picklable(error: Exception) -> DataError:
    """Return the error for what cannot go over the line; as it is none of `ERRORS`, the line is not given up."""
    return DataError(
        f"what goes between the trainer and its ranks must be picklable: {words_of(error)}; of infos, name those that "
        'are wanted, or give infos="none"'
    )


class StepMemory:
    """The arrays of one step of all envs, for both ends of a line on one host: no message copies them.

    The memory has no name in the file system: it is gone when both ends are gone, however they end.  The end that
    `creates` it gives it to the other one.
    """

    def __init__(self, spaces: tuple[Space, Space], num_envs: int, channel: Channel, creates: bool) -> None:
        groups = leaves(spaces[1]), leaves(spaces[0]), RESULTS
        described = [leaf for group in groups for leaf in group]
        offsets = [0, *accumulate(-(-num_envs * leaf.nbytes // ALIGNMENT) * ALIGNMENT for leaf in described)]
        if creates:
            descriptor = os.memfd_create("mpi_rollout")
            os.ftruncate(descriptor, offsets[-1])
            reduction.send_handle(channel, descriptor, 0)
        else:
            descriptor = reduction.recv_handle(channel)
        memory = mmap(descriptor, offsets[-1])
        os.close(descriptor)
        places = zip(described, offsets, strict=False)  # The last offset is the end.
        arrays = iter([np.ndarray((num_envs, *leaf.shape), leaf.dtype, memory, offset) for leaf, offset in places])
        # An array (num_envs, ...) for each leaf; results are rewards, terminations and truncations.
        self.actions, self.observations, self.results = ([next(arrays) for _ in group] for group in groups)
