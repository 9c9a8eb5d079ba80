"""The picture of a run that `inspect --plot` draws, in a child process, see `storage.sandbox`."""

from typing import TYPE_CHECKING, Any

import numpy as np

from mpi_rollout.commands import style
from mpi_rollout.commands.run_summary import shards_of
from mpi_rollout.process.clock import WORDS
from mpi_rollout.storage.checked_file import checked
from mpi_rollout.storage.schema import INTERVAL, LIMIT, RETURN_OF
from mpi_rollout.storage.untrusted import Tell, count, parsed, text
from mpi_rollout.text import counted

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_BARS = 32  # With more ranks, an area takes the place of bars.
MOST_DOTS, NUM_MEANS, MOST_BINS = 5000, 20, 40
WHOLE, WIDEST = 1e9, 1e300  # With larger values, bars a unit apart or of equal widths cannot be computed.


def plot_run(tell: Tell, path: str, figure_path: str) -> str:
    """Draw a run: its episodes, its throughput, each rank's time by phase; return the file's name."""
    figure = style.new_figure("--plot", 7.6)
    panels = figure.subplot_mosaic([["over", "returns"], ["rates", "lengths"], ["phases", "phases"]])
    with checked(path, tell) as checks, shards_of(checks, path) as shards:
        checks.tell("its tables")
        attributes, config = checks.root, checks.config
        intervals, limit = checks.table("throughput/intervals", INTERVAL), checks.table("throughput/limit", LIMIT)
        ranks = checks.ranks()
        episodes = checks.committed_episodes() if checks.has_trajectories else None
        episodes = shards.episodes if shards else episodes
        hosts = ", ".join(sorted(set(parsed(attributes, "hosts", list))))
        num_ranks = len(ranks) or count(attributes, "num_ranks")
        sizes = f"{counted(config.num_envs, 'env')} on {counted(num_ranks, 'rank')}"
        style.head(figure, f"{config.env or config.env_factory}: {sizes}", [f"{hosts}; {text(attributes, 'started')}"])
    tell("drawing")
    _plot_episodes(panels["over"], panels["returns"], panels["lengths"], episodes)
    _plot_rates(panels["rates"], intervals, limit)
    _plot_phases(panels["phases"], ranks)
    return style.save(figure, "--plot", figure_path)


def _plot_episodes(over: "Axes", returns: "Axes", lengths: "Axes", episodes: np.ndarray | None) -> None:
    style.frame(over, "Returns over the run: episodes and mean", "step at which the episode ended", "return")
    style.frame(returns, "Returns", "return", "episodes", "y")
    style.frame(lengths, "Lengths", "steps", "episodes", "y")
    ended = None if episodes is None else episodes[episodes["terminated"] | episodes["truncated"]]
    if ended is None or not len(ended):
        for axes in (over, returns, lengths):
            style.say(axes, "no trajectories stored" if ended is None else "no episode has ended")
        return
    _plot_returns(over, ended)
    _plot_spread(returns, ended["return"])
    _plot_spread(lengths, ended["length"])


def _plot_returns(axes: "Axes", ended: np.ndarray) -> None:
    """Draw a dot for each episode, or for some of them; and the mean of each twentieth of all; of finite returns."""
    agents = [name for name in ended.dtype.names or () if name.startswith(RETURN_OF)]
    if not np.isfinite(ended["return"]).any() and not agents:
        return style.say(axes, "none is finite")
    ends, returns = ended["start"] + ended["length"], _finite(ended["return"])
    shown = np.linspace(0, len(ended) - 1, min(len(ended), MOST_DOTS)).astype(int)
    axes.plot(ends[shown], returns[shown], ".", color="0.75", markersize=2, rasterized=True)
    groups = [group for group in np.array_split(np.arange(len(ended)), NUM_MEANS) if len(group)]
    means = [_mean_of(returns[group]) for group in groups]
    middles = [ends[group].mean() for group in groups]
    axes.plot(middles, means, color=style.BLUE, linewidth=2, label="all agents")
    colors = style.ORANGE, style.GREEN, style.RED, style.PURPLE
    for name, color, line in zip(agents[: len(colors)], colors, style.LINES, strict=False):
        of_agent = [_mean_of(_finite(ended[name])[group]) for group in groups]
        axes.plot(middles, of_agent, color=color, linestyle=line, label=name.removeprefix(RETURN_OF))
    if agents:
        more = len(agents) - len(colors)
        axes.margins(y=0.45)  # Room for the legend above or below the lines.
        style.legend(axes, title=f"and {more} more agents" if more > 0 else None, loc="upper left")
    style.human_ticks(axes.xaxis, axes.yaxis)


def _finite(values: np.ndarray) -> np.ndarray:
    """Return values with NaN for each that is not finite: no dot is drawn there."""
    return np.where(np.isfinite(values), values, np.nan)


def _mean_of(values: np.ndarray) -> float:
    """Return the mean of those that are finite; NaN, at which a line is broken, where none is."""
    values = values[np.isfinite(values)]
    return float(values.mean()) if len(values) else np.nan


def _plot_spread(axes: "Axes", values: np.ndarray) -> None:
    """Show how many episodes have which value, the mean and the median; and how many have none that can be shown."""
    num_episodes, values = len(values), values[np.isfinite(values)].astype(float)
    if not len(values):
        return style.say(axes, "none is finite")
    if num_left_out := num_episodes - len(values):
        name = axes.get_xlabel()
        axes.set_xlabel(f"{name}; {num_left_out:,} of {num_episodes:,} episodes left out: {name} not finite")
    low, high, mean = values.min(), values.max(), values.mean()
    if high - low > WIDEST:
        return style.say(axes, f"from {low:.3g} to {high:.3g}")
    bins = _bins(values, low, high)
    axes.hist(values, bins.tolist(), color=style.BLUE, edgecolor="w", linewidth=0.4)
    if len(bins) < 10:  # Without this a single bar is as wide as the panel.
        axes.set_xlim(bins[0] - 5 * (bins[1] - bins[0]), bins[-1] + 5 * (bins[1] - bins[0]))
    axes.axvline(mean, color=style.DARK, linestyle="--", linewidth=1)
    middle = f"mean {style.human(mean)} (dashed), median {style.human(float(np.median(values)))}"
    axes.text(1, 1.03, middle, ha="right", fontsize=style.SMALL, transform=axes.transAxes)
    axes.locator_params("y", integer=True)
    style.human_ticks(axes.xaxis, axes.yaxis)


def _bins(values: np.ndarray, low: float, high: float) -> np.ndarray:
    """Return the ends of bars, each of as many numbers as the others if the numbers are whole."""
    if low == high:
        half = 0.5 if abs(low) < WHOLE else abs(low) / 100
        return np.array([low - half, low + half])
    if high - low < WHOLE and abs(high) < WHOLE and (values == np.round(values)).all():
        width = np.ceil((high - low + 1) / MOST_BINS)  # Without this some bars would hold more numbers than others.
        return np.arange(low - 0.5, high + width, width)
    return np.linspace(low, high, MOST_BINS + 1)


def _plot_rates(axes: "Axes", intervals: np.ndarray, limit: np.ndarray) -> None:
    """Draw rates over time; over env steps where the run waits while the limit is measured."""
    xlabel = "env steps of the run" if len(limit) else "seconds of the run"
    style.frame(axes, "Throughput over the run", xlabel, "env steps per second")
    if not len(intervals):
        return style.say(axes, "no interval measured")
    marker, places = "o" if len(intervals) < 30 else "", intervals["env_steps"] if len(limit) else _times(intervals)
    axes.plot(places, intervals["env_steps_per_s"], color=style.BLUE, linewidth=1.5, marker=marker, markersize=3)
    axes.set_xlim(0, 1.02 * places.max() if places.max() > 0 else 1)
    if len(limit):
        rates = limit["limit_env_steps_per_s"]
        axes.axhspan(rates.min(), rates.max(), color=style.LIGHT, linewidth=0)
        axes.axhline(np.median(rates), color=style.GREY, linestyle="--", linewidth=1)
        axes.annotate(
            "limit: bare env.step loops",
            (0.01, rates.max()),
            (0, 2),
            xycoords=("axes fraction", "data"),
            textcoords="offset points",
            color=style.GREY,
            fontsize=style.SMALL,
        )
    axes.set_ylim(0, 1.12 * axes.get_ylim()[1])
    style.human_ticks(axes.xaxis, axes.yaxis)


def _times(intervals: np.ndarray) -> np.ndarray:
    """Return the seconds of the run at which intervals end; each of its starts has counted its own."""
    times = intervals["time"].astype(float)
    ends_of_starts = np.flatnonzero(np.diff(times) < 0)
    for place in ends_of_starts:
        times[place + 1 :] += intervals["time"][place]
    return times


def _plot_phases(axes: "Axes", ranks: np.ndarray) -> None:
    style.frame(axes, "Where each rank's time went", "rank", "seconds", "y")
    num_ranks = len(ranks)
    if not any(ranks[phase].any() for phase in WORDS):  # A recorded trainer has none, nor has a run before its end.
        return style.say(axes, "not measured")
    if num_ranks > MOST_BARS:  # The root's bar gets a width that can be seen.
        root = -0.025 * num_ranks
        _stack(axes, np.array([root]), ranks[:1], 0.04 * num_ranks)
        _stack(axes, ranks["rank"][1:], ranks[1:])
        shown = [int(rank) for rank in axes.xaxis.get_major_locator().tick_values(0, num_ranks) if 0 < rank < num_ranks]
        axes.set_xticks([root, *shown], labels=["root", *(f"{rank:,}" for rank in shown)])
        axes.set_xlim(-0.055 * num_ranks, num_ranks)
    else:
        _stack(axes, ranks["rank"], ranks, 0.8)
        shown = ranks["rank"][:: 1 + num_ranks // 17].tolist()
        axes.set_xticks(shown, labels=[f"{rank}{' (root)' * (rank == 0)}" for rank in shown])
        axes.set_xlim(-0.5 - 0.5 * (num_ranks < 4), num_ranks - 0.5 + 0.5 * (num_ranks < 4))
    axes.set_ylim(0, 1.05 * axes.get_ylim()[1])
    style.human_ticks(axes.yaxis)
    style.legend_below(axes, len(WORDS))


def _stack(axes: "Axes", places: np.ndarray, ranks: np.ndarray, width: float = 0.0) -> None:
    """Draw bars of some width, or an area."""
    bottom = np.zeros(len(ranks))
    for phase, word in WORDS.items():
        color, hatch = style.TIME[word]
        look: dict[str, Any] = {"facecolor": color, "hatch": hatch, "label": word, "edgecolor": "w"}
        if width:
            axes.bar(places, ranks[phase], width, bottom, linewidth=0.4, **look)
        else:
            axes.fill_between(places, bottom, bottom + ranks[phase], step="mid", linewidth=0, **look)
        bottom = bottom + ranks[phase]
