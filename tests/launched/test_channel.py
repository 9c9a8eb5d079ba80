"""The line between a trainer and rank 0: who has not proved the key gets nothing, and nothing of it is unpickled."""

import json
import os
import pickle
import socket
import stat
import struct
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge
from pathlib import Path

import numpy as np
import pytest

from mpi_rollout.errors import LaunchError
from mpi_rollout.launched import channel
from mpi_rollout.launched.channel import Channel, Meeting, call_trainer


@pytest.fixture
def meeting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Meeting]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(channel, "PROOF_S", 1)
    with Meeting(is_local=False) as each:
        yield each


def met(meeting: Meeting, family: socket.AddressFamily) -> Connection | None:
    return meeting.meet(next(each for each in meeting.listeners if each.family == family))


class Mark:
    """Leaves a file where it is unpickled."""

    def __reduce__(self) -> tuple[object, ...]:
        return Path("unpickled").touch, ()


@pytest.mark.parametrize("family", [socket.AF_UNIX, socket.AF_INET])
def test_both_ends_send_values_and_arrays(meeting: Meeting, family: socket.AddressFamily):
    path = Path(meeting.folder, channel.TRAINER)
    if family == socket.AF_INET:
        path.write_text(path.read_text().replace('"host": "', '"host": "not '))
    found: list[Connection] = []
    thread = threading.Thread(target=lambda: found.append(call_trainer(meeting.folder)))
    thread.start()
    ours = met(meeting, family)
    thread.join()
    assert ours is not None
    ends = Channel(ours), Channel(found[0])
    assert not any(end.is_waiting for end in ends), "an exception of a signal handler would tear what is sent first"
    sent = {"array": np.arange(10.0), "function": lambda: 3}
    for this, that in (ends, ends[::-1]):
        this.send(sent)
        received = that.receive()
        assert received["array"].tolist() == sent["array"].tolist() and received["array"].flags.writeable
        assert received["function"]() == 3 and this.is_local == (family == socket.AF_UNIX)
    ends[0].close()
    with pytest.raises(EOFError):
        ends[1].receive()


@pytest.mark.parametrize("says", ["nothing", "a wrong key", "a pickle", "much"])
@pytest.mark.parametrize("family", [socket.AF_UNIX, socket.AF_INET])
def test_a_peer_without_the_key_is_sent_away(meeting: Meeting, family: socket.AddressFamily, says: str, tmp_path: Path):
    listener = next(each for each in meeting.listeners if each.family == family)
    address = listener.getsockname() if family == socket.AF_UNIX else ("127.0.0.1", listener.getsockname()[1])
    errors: list[BaseException] = []

    def try_key(connection: Connection) -> None:
        try:
            answer_challenge(connection, b"guess")
        except AuthenticationError as error:
            errors.append(error)

    with socket.socket(family) as peer:
        peer.connect(address)
        if family == socket.AF_INET:
            Path(meeting.folder, channel.RANK_0).write_text("{}:{}".format(*peer.getsockname()))
        if says == "a wrong key":
            thread = threading.Thread(target=try_key, args=[Connection(os.dup(peer.fileno()))])
            thread.start()
        else:
            data = pickle.dumps(Mark()) if says == "a pickle" else b"x" * 5000
            peer.send(b"" if says == "nothing" else struct.pack("!i", len(data)) + data)
        assert met(meeting, family) is None
        if says == "a wrong key":
            thread.join()
            assert len(errors) == 1
    assert not (tmp_path / "unpickled").exists()


def test_another_host_than_that_of_rank_0_is_not_heard(meeting: Meeting):
    """It would have to prove the key, too: it is not even asked."""
    Path(meeting.folder, channel.RANK_0).write_text("192.0.2.7:5")
    with socket.create_connection(("127.0.0.1", meeting.listeners[1].getsockname()[1])) as peer:
        assert met(meeting, socket.AF_INET) is None
        assert peer.recv(1) == b""


def test_who_says_nothing_on_the_host_of_rank_0_keeps_it_waiting_no_time(meeting: Meeting):
    """Else rank 0 would give up, whose own proof has to wait."""
    path = Path(meeting.folder, channel.TRAINER)
    path.write_text(path.read_text().replace('"host": "', '"host": "not '))
    host = json.loads(path.read_text())["hosts"][0]
    with socket.create_connection((host, meeting.listeners[1].getsockname()[1])), ThreadPoolExecutor(1) as pool:
        calling = pool.submit(call_trainer, meeting.folder)
        while not Path(meeting.folder, channel.RANK_0).read_text():
            pass
        assert met(meeting, socket.AF_INET) is None
        assert met(meeting, socket.AF_INET) is not None
        calling.result().close()


def test_only_the_user_can_read_the_key(meeting: Meeting):
    folder = Path(meeting.folder)
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (folder, *folder.iterdir())]
    assert modes == [0o700, 0o600, 0o600]


def test_without_a_trainer_the_ranks_say_whom_they_cannot_reach(meeting: Meeting):
    for listener in meeting.listeners:
        listener.close()
    with pytest.raises(LaunchError, match=r"cannot reach the trainer on .* by .*:\d+ and .*:\d+"):
        call_trainer(meeting.folder)
    with pytest.raises(LaunchError, match=r"cannot read the trainer's .*trainer.json: No such file.*; if"):
        call_trainer(meeting.folder + "not")
