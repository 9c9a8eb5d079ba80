"""The bar and the lines that tell how far a run is, without a run."""

import os
import pty
import struct
import termios
from fcntl import ioctl

import pytest

from mpi_rollout.collect import progress
from mpi_rollout.collect.episode_goal import EpisodeGoal
from mpi_rollout.collect.progress import Bar, Done, Lines, make_progress
from mpi_rollout.process.terminal import Terminal

pytestmark = pytest.mark.any_mpi
LOSSES = {"envs": 0.66, "imbalance": 0.3, "exchange": -0.001}


class Screen:
    """A terminal of some width that keeps what it got."""

    is_gone, encoding, clear = False, "utf-8", "\r\x1b[K"

    def __init__(self, columns: int):
        self.columns, self.text = columns, ""

    def write(self, text: str) -> None:
        self.text += text


def told(bar: Bar, num_steps: int) -> str:
    bar._terminal.text = ""
    bar.tell(Done(num_steps, 6 * num_steps, 12_345.6, LOSSES))
    return bar._terminal.text.removeprefix("\r")


def bar_of(screen: Screen) -> Bar:
    return Bar(10_000, screen, Lines(10_000))


@pytest.mark.parametrize("columns", [1, 3, 10, 40, 80, 200])
def test_the_bar_fits_in_the_line_of_a_terminal(columns):
    bar = bar_of(Screen(columns))
    for num_steps in (1000, 5000, 10_000):
        assert len(told(bar, num_steps)) == max(columns - 3, 1)


def test_the_width_decides_what_the_bar_tells():
    bar = bar_of(Screen(80))
    told(bar, 1000)
    bar._terminal.columns = 200  # It was resized.
    line = told(bar, 5000)
    assert line.startswith(" 50%|█████") and line.endswith(
        "| 12,346 env steps/s, 00:00 left, 5,000/10,000 steps, envs 66%, imbalance 30%, exchange 0%, 30,000 env steps"
    )
    bar._terminal.columns = 80
    assert told(bar, 5000).endswith("  | 12,346 env steps/s, 00:00 left, 5,000/10,000 steps, envs 66%")
    bar._terminal.columns = 45
    assert told(bar, 5000).endswith("| 12,346 env steps/s")


def test_a_run_that_ends_with_its_episodes_shows_whichever_is_nearer_to_its_end(capfd):
    bar, goal = bar_of(Screen(120)), EpisodeGoal(50, 7, True)
    for num_ended, num_steps, percent in ((10, 1000, 20), (10, 5000, 50), (52, 6000, 100)):
        goal.num_ended = num_ended
        bar._terminal.text = ""
        bar.tell(Done(num_steps, 6 * num_steps, 10.0, LOSSES, goal))
        assert bar._terminal.text.startswith(f"\r{percent:3}%|")
        assert f", {num_ended}/50 episodes, {num_steps:,}/10,000 steps" in bar._terminal.text
    bar._instead.tell(Done(6000, 36_000, 10.0, LOSSES, goal))
    assert capfd.readouterr().err.startswith("mpi_rollout: 6,000 of at most 10,000 steps (100%), 52 of 50 episodes, 36")


def test_a_terminal_without_blocks_gets_a_bar_of_ascii():
    screen = Screen(80)
    screen.encoding = "ascii"
    assert told(bar_of(screen), 5000).startswith(" 50%|#####")


def test_a_bar_that_is_closed_leaves_nothing_and_closes_once():
    bar = bar_of(Screen(80))
    told(bar, 5000)
    bar._terminal.text = ""
    bar.close()
    bar.close()
    assert bar._terminal.text == "\r\x1b[K"


@pytest.fixture
def terminal():
    """A terminal, and the descriptor of who shows it."""
    ours, theirs = pty.openpty()
    ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
    opened = Terminal(os.open(os.ttyname(theirs), os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY))
    os.close(theirs)
    yield opened, ours
    os.close(opened._descriptor)


def test_a_terminal_knows_its_width_whenever_it_is_asked(terminal):
    opened, ours = terminal
    assert opened.columns == 100
    ioctl(ours, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 0, 0, 0))
    assert opened.columns == 80
    os.close(ours)


def test_a_terminal_that_takes_nothing_is_not_waited_for(terminal):
    """As after Ctrl-S."""
    opened, ours = terminal
    for _ in range(5000):
        opened.write("a line that nobody reads" * 3)
    assert not opened.is_gone
    os.close(ours)


def test_a_terminal_that_is_gone_is_told_of_no_more_and_lines_take_its_place(terminal, capfd):
    opened, ours = terminal
    bar = bar_of(opened)
    os.close(ours)
    bar.tell(Done(1000, 6000, 100.0, LOSSES))
    assert opened.is_gone and bar.every_s < 1
    bar.tell(Done(2000, 12_000, 100.0, LOSSES))
    bar.close()
    err = capfd.readouterr().err
    assert err.startswith("mpi_rollout: 2,000 of 10,000 steps (20%), 12,000 env steps, 100 env steps/s")
    assert bar.every_s == progress.LINE_EVERY_S


@pytest.mark.parametrize("path", ["/nowhere", "/dev/null", None])
def test_where_no_terminal_can_be_opened_lines_tell(path, monkeypatch):
    monkeypatch.setattr("mpi_rollout.process.terminal.find_terminal", lambda: path if path != "/dev/null" else None)
    monkeypatch.setattr(os, "isatty", lambda _: False)
    assert isinstance(make_progress("auto", 10), Lines)


def test_a_terminal_that_can_erase_nothing_gets_lines(monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setattr("mpi_rollout.process.terminal.find_terminal", lambda: "/dev/null")
    assert isinstance(make_progress("auto", 10), Lines)
