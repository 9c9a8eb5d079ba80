"""The picture of a run: its episodes, its throughput, where the time of its ranks went."""

from typing import Any

import numpy as np

from mpi_rollout.commands import style
from mpi_rollout.config import RolloutConfig
from mpi_rollout.errors import counted
from mpi_rollout.storage.objects import Tell, attributes_of, count, parsed, text
from mpi_rollout.storage.reader import committed_episodes, opened, throughput_tables

PHASES = {
    "step": ("stepping envs", style.BLUE, ""), "gather": ("gathering the ranks' data", style.GREEN, "\\\\\\"),
    "wait": ("waiting for orders", style.LIGHT, "///"), "send": ("sending orders", style.SKY, ""),
    "policy": ("policy", style.ORANGE, "..."), "write": ("waiting for the disk", style.RED, ""),
}  # fmt: skip
"""The name, colour and hatch of each of `timing.PHASES` but `other`: that is measuring the limit, not the run."""
MOST_BARS = 32  # With more ranks their bars become an area.
MOST_DOTS, NUM_MEANS, MOST_BINS = 5000, 20, 40
WHOLE, WIDEST = 1e9, 1e300  # With larger values, bars a unit apart or of equal widths cannot be computed.


def plot_run(tell: Tell, path: str, figure_path: str) -> str:
    """Draw a run: its episodes, its throughput, each rank's time by phase; return the file's name.

    Raises
    ------
    UsageError
        matplotlib is missing, or cannot write such a file.
    DataError
        The file cannot be read.
    """
    figure = style.new_figure("--plot", 7.6)
    panels = figure.subplot_mosaic([["over", "returns"], ["rates", "lengths"], ["phases", "phases"]])
    with opened(path, tell) as (file, note):
        note("its tables")
        attributes = attributes_of(file)
        config = RolloutConfig.from_json(attributes.get("config"), path)
        intervals, limit, ranks = throughput_tables(file)
        episodes = committed_episodes(file) if "episodes" in file else None
        hosts = ", ".join(sorted(set(parsed(attributes, "hosts", list))))
        sizes = f"{counted(config.num_envs, 'env')} on {counted(count(attributes, 'num_ranks'), 'rank')}"
        style.head(figure, f"{config.env or config.env_factory}: {sizes}", [f"{hosts}; {text(attributes, 'started')}"])
    tell("drawing")
    _plot_episodes(panels["over"], panels["returns"], panels["lengths"], episodes)
    _plot_rates(panels["rates"], intervals, limit)
    _plot_phases(panels["phases"], ranks)
    return style.save(figure, "--plot", figure_path)


def _plot_episodes(over: Any, returns: Any, lengths: Any, episodes: np.ndarray | None) -> None:
    style.frame(over, "Returns over the run: episodes and mean", "step at which the episode ended", "return")
    style.frame(returns, "Returns", "return", "episodes", "y")
    style.frame(lengths, "Lengths of episodes", "steps", "episodes", "y")
    ended = None if episodes is None else episodes[episodes["terminated"] | episodes["truncated"]]
    if ended is None or not len(ended):
        for axes in (over, returns, lengths):
            style.say(axes, "no trajectories stored" if ended is None else "no episode has ended")
        return
    _plot_returns(over, ended)
    _plot_spread(returns, ended["return"])
    _plot_spread(lengths, ended["length"])


def _plot_returns(axes: Any, ended: np.ndarray) -> None:
    """A dot for each episode, or some of them; the mean of each twentieth of all."""
    ends, returns = ended["start"] + ended["length"], ended["return"]
    shown = np.linspace(0, len(ended) - 1, min(len(ended), MOST_DOTS)).astype(int)
    axes.plot(ends[shown], returns[shown], ".", color="0.75", markersize=2, rasterized=True)
    groups = [group for group in np.array_split(np.arange(len(ended)), NUM_MEANS) if len(group)]
    means = [returns[group].mean() for group in groups]
    axes.plot([ends[group].mean() for group in groups], means, color=style.BLUE, linewidth=2)
    style.human_ticks(axes.xaxis, axes.yaxis)


def _plot_spread(axes: Any, values: np.ndarray) -> None:
    """How many episodes have which value, and the mean."""
    values = values[np.isfinite(values)].astype(float)
    if not len(values):
        return style.say(axes, "none is finite")
    low, high, mean = values.min(), values.max(), values.mean()
    if high - low > WIDEST:
        return style.say(axes, f"from {low:.3g} to {high:.3g}")
    bins = _bins(values, low, high)
    axes.hist(values, bins, color=style.SKY, edgecolor="w", linewidth=0.4)
    if len(bins) < 10:  # Else a single bar is as wide as the panel.
        axes.set_xlim(bins[0] - 5 * (bins[1] - bins[0]), bins[-1] + 5 * (bins[1] - bins[0]))
    axes.axvline(mean, color=style.DARK, linestyle="--", linewidth=1)
    axes.text(1, 1.03, f"mean {style.human(mean)}", ha="right", fontsize=style.SMALL, transform=axes.transAxes)
    axes.yaxis.get_major_locator().set_params(integer=True)
    style.human_ticks(axes.xaxis, axes.yaxis)


def _bins(values: np.ndarray, low: float, high: float) -> np.ndarray:
    """The ends of bars: one for each number where these are few and whole."""
    if low == high:
        half = 0.5 if abs(low) < WHOLE else abs(low) / 100
        return np.array([low - half, low + half])
    if high - low < MOST_BINS and abs(high) < WHOLE and (values == np.round(values)).all():
        return np.arange(low - 0.5, high + 1)
    return np.linspace(low, high, MOST_BINS + 1)


def _plot_rates(axes: Any, intervals: np.ndarray, limit: np.ndarray) -> None:
    """Over env steps, not over time: measuring the limit takes time in which the run stands still."""
    style.frame(axes, "Throughput over the run", "env steps of the run", "env steps per second")
    axes.plot(intervals["env_steps"], intervals["env_steps_per_s"], color=style.BLUE, linewidth=1.5,
              marker="o" if len(intervals) < 30 else "", markersize=3)  # fmt: skip
    if len(limit):
        rates = limit["limit_env_steps_per_s"]
        axes.axhspan(rates.min(), rates.max(), color=style.LIGHT, linewidth=0)
        axes.axhline(np.median(rates), color=style.GREY, linestyle="--", linewidth=1)
        axes.annotate("limit: bare env.step loops", (0.01, rates.max()), (0, 2), xycoords=("axes fraction", "data"),
                      textcoords="offset points", color=style.GREY, fontsize=style.SMALL)  # fmt: skip
    axes.set_ylim(0, 1.12 * axes.get_ylim()[1])
    style.human_ticks(axes.xaxis, axes.yaxis)


def _plot_phases(axes: Any, ranks: np.ndarray) -> None:
    style.frame(axes, "Where each rank's time went", "rank", "seconds", "y")
    num_ranks = len(ranks)
    if num_ranks > MOST_BARS:  # The root's bar gets a width that can be seen.
        root = -0.025 * num_ranks
        _stack(axes, np.array([root]), ranks[:1], 0.04 * num_ranks)
        _stack(axes, ranks["rank"][1:], ranks[1:])
        shown = [int(rank) for rank in axes.xaxis.get_major_locator().tick_values(0, num_ranks) if 0 < rank < num_ranks]
        axes.set_xticks([root, *shown], labels=["root", *(f"{rank:,}" for rank in shown)])
        axes.set_xlim(-0.055 * num_ranks, num_ranks)
    else:
        _stack(axes, ranks["rank"], ranks, 0.8)
        shown = ranks["rank"][:: 1 + num_ranks // 17]
        axes.set_xticks(shown, labels=[f"{rank}{' (root)' * (rank == 0)}" for rank in shown.tolist()])
        axes.set_xlim(-0.5 - 0.5 * (num_ranks < 4), num_ranks - 0.5 + 0.5 * (num_ranks < 4))
    axes.set_ylim(0, 1.05 * axes.get_ylim()[1])
    style.human_ticks(axes.yaxis)
    style.legend_below(axes, len(PHASES))


def _stack(axes: Any, places: np.ndarray, ranks: np.ndarray, width: float = 0.0) -> None:
    """Bars of some width, or an area."""
    bottom = np.zeros(len(ranks))
    for phase, (name, color, hatch) in PHASES.items():
        look = {"facecolor": color, "hatch": hatch, "label": name, "edgecolor": "w"}
        if width:
            axes.bar(places, ranks[phase], width, bottom, linewidth=0.4, **look)
        else:
            axes.fill_between(places, bottom, bottom + ranks[phase], step="mid", linewidth=0, **look)
        bottom = bottom + ranks[phase]
