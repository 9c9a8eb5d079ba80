"""How pictures look: human numbers, lines that can be told apart."""

import numpy as np
import pytest

from mpi_rollout.commands import run_picture, style
from mpi_rollout.process.clock import WORDS
from mpi_rollout.storage.schema import EPISODE, INTERVAL, LIMIT, RANK

pytest.importorskip("matplotlib")


@pytest.mark.parametrize(
    ("value", "digits", "told"),
    [
        (0, 3, "0"), (0.25, 3, "0.25"), (999, 3, "999"), (1500, 3, "1.5 k"), (999_999, 3, "1 M"), (-2e6, 3, "-2 M"),
        (3.21e9, 3, "3.21 G"), (1002, 3, "1 k"), (1002, 6, "1,002"), (100_000, 6, "100 k"),
    ],
)  # fmt: skip
def test_numbers_are_written_as_people_say_them(value, digits, told):
    assert style.human(value, digits) == told


def test_lines_look_different():
    looks = {tuple(style.look(place, 20).items()) for place in range(20)}
    assert len(looks) == 20


def ranks_of(num_ranks: int) -> np.ndarray:
    rows = np.zeros(num_ranks, RANK)
    rows["rank"] = np.arange(num_ranks)
    for phase in WORDS:
        rows[phase] = 1.0
    return rows


@pytest.mark.parametrize("num_ranks", [1, 32, 33])
def test_the_time_of_any_number_of_ranks_is_drawn_with_the_roots_in_a_bar_that_is_seen(num_ranks: int):
    axes = style.new_figure("--plot", 3).subplots()
    run_picture._plot_phases(axes, ranks_of(num_ranks))
    tops = {bar.get_y() + bar.get_height() for bar in axes.containers[-1]}
    assert tops == {len(WORDS)}
    width = axes.containers[-1][0].get_width() / np.ptp(axes.get_xlim())
    assert width > 0.02
    first = axes.get_xticklabels()[0].get_text()
    areas = [area.get_datalim(axes.transData) for area in axes.collections]
    if num_ranks <= 32:
        assert not areas and len(axes.patches) == num_ranks * len(WORDS) and first == "0 (root)"
        assert sum(axes.get_xlim()) == num_ranks - 1, "as much room on both sides"
    else:  # Not a bar for each rank.
        assert len(areas) == len(axes.patches) == len(WORDS) and first == "root"
        assert {(area.x0, area.x1) for area in areas} == {(1, num_ranks - 1)}
        assert max(area.y1 for area in areas) == len(WORDS)
    names = [text.get_text() for text in axes.get_legend().get_texts()]
    assert names == [*WORDS.values()]


def test_measuring_the_limit_leaves_no_gap_in_the_throughput():
    intervals = np.array([(1, 100, 100), (2, 200, 100), (9, 300, 100)], INTERVAL)  # Seven seconds for the limit.
    axes = style.new_figure("--plot", 3).subplots()
    run_picture._plot_rates(axes, intervals, np.array([(100, 120), (100, 140)], LIMIT))
    assert [*axes.lines[0].get_xdata()] == [100, 200, 300]
    assert [*axes.lines[1].get_ydata()] == [130, 130]


def test_returns_and_lengths_are_drawn_as_they_are_spread():
    episodes = np.zeros(6, EPISODE)
    episodes["return"], episodes["length"] = [1, 1, 2, 5, np.nan, 7], [3, 3, 3, 4, 4, 9]
    episodes["terminated"] = [True] * 5 + [False]  # The last one is under way.
    over, returns, lengths = style.new_figure("--plot", 3).subplots(1, 3)
    run_picture._plot_episodes(over, returns, lengths, episodes)
    assert [bar.get_height() for bar in returns.patches] == [2, 1, 0, 0, 1]
    assert [bar.get_height() for bar in lengths.patches] == [3, 2]
    assert lengths.patches[0].get_width() == 1 and np.ptp(lengths.get_xlim()) == 12  # No bar as wide as the panel.
    assert [axes.texts[-1].get_text() for axes in (returns, lengths)] == [
        "mean 2.25 (dashed), median 1.5",
        "mean 3.4 (dashed), median 3",
    ]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("value", [0.0, 1e18, -1e300, [-1e308, 1e308], [1e18, 1.001e18], [0.1, 0.2]])
def test_returns_of_any_size_are_drawn(value):
    panels = style.new_figure("--plot", 3).subplots(1, 3)
    episodes = np.zeros(2, EPISODE)
    episodes["return"], episodes["terminated"] = value, True
    with np.errstate(all="ignore"):
        run_picture._plot_episodes(*panels, episodes)
    if value == [0.1, 0.2]:
        assert np.ptp(panels[1].get_xlim()) < 0.15  # As wide as what it shows.
    assert sum(bar.get_height() for bar in panels[1].patches) == 2 or "from -1e+308" in panels[1].texts[0].get_text()


@pytest.mark.parametrize(("episodes", "words"), [(None, "no trajectories stored"), (0, "no episode has ended")])
def test_a_run_without_episodes_says_so(episodes, words):
    panels = style.new_figure("--plot", 3).subplots(1, 3)
    run_picture._plot_episodes(*panels, None if episodes is None else np.zeros(2, EPISODE))
    assert [axes.texts[0].get_text() for axes in panels] == [words] * 3


def test_returns_that_are_not_finite_break_no_line_and_the_picture_says_how_many_were_left_out():
    episodes = np.zeros(100, EPISODE)
    episodes["start"], episodes["length"], episodes["terminated"] = np.arange(100), 1, True
    episodes["return"] = np.where(np.arange(100) % 9, 1.0, np.nan)
    episodes["return"][:5] = np.inf  # All of the first twentieth.
    over, returns, lengths = style.new_figure("--plot", 6).subplots(3)
    run_picture._plot_episodes(over, returns, lengths, episodes)
    means = over.get_lines()[1].get_ydata()
    assert np.isnan(means[0]) and (means[1:] == 1.0).all()
    assert returns.get_xlabel() == "return; 16 of 100 episodes left out: return not finite"
    assert lengths.get_xlabel() == "steps"
