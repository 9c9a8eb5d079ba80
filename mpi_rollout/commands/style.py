"""How all pictures look: colours, numbers, legends, where a title and the fine print stand.

A picture is 8 inches wide: its smallest text can still be read where it is shown 800 pixels wide.  Colours are those of
Okabe and Ito, which people who see no red or no green tell apart; what they tell, a marker, a kind of line or a hatch
tells too, for print in black and white.  Needs the extra `plots`; draws into files, never to a screen.
"""

import os
from collections.abc import Sequence
from shlex import quote
from textwrap import fill
from typing import Any

from mpi_rollout.errors import UsageError

KINDS = (".png", ".svg")  # Of the pictures of a study.
WIDTH, DOTS_PER_INCH = 8.0, 150  # WIDTH in inches.
TITLE, NORMAL, SMALL, FINE = 12, 9, 8, 7  # Sizes of texts in points.
BLUE, ORANGE, GREEN, RED, SKY, PURPLE = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#56B4E9", "#CC79A7"
DARK, GREY, LIGHT = "0.25", "0.45", "0.87"
COLORS = (BLUE, RED, GREEN, ORANGE, PURPLE, SKY, DARK)
LINES, MARKERS = ("-", "--", "-", "-.", "--", "-", ":"), "os^Dv<Xp>*P"


def look(place: int) -> dict[str, str]:
    """Of a line that has no colour by its meaning, by its place among such lines; 77 of them differ."""
    kind = place % len(COLORS)
    return {"color": COLORS[kind], "linestyle": LINES[kind], "marker": MARKERS[place % len(MARKERS)]}


def new_figure(what: str, height: float) -> Any:
    """An empty figure, `height` in inches; `what` is the option or command that needs it.

    Raises
    ------
    UsageError
        matplotlib is missing.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UsageError(f"{what} needs matplotlib; pip install 'mpi_rollout[plots]'") from error
    return Figure(figsize=(WIDTH, height), layout="constrained")


def head(figure: Any, title: str, fine: Sequence[str]) -> None:
    """The title above all panels, and the fine print below them."""
    figure.suptitle(fill(title, 72), x=0.01, ha="left", fontsize=TITLE, fontweight="bold", parse_math=False)
    print_ = "\n".join(fill(line, 150) for line in fine if line)
    figure.supxlabel(print_, x=0.01, ha="left", fontsize=FINE, color=GREY, parse_math=False)
    figure.get_layout_engine().set(w_pad=0.08, h_pad=0.08, hspace=0.04)


def frame(axes: Any, title: str = "", xlabel: str = "", ylabel: str = "", grid: str = "both") -> None:
    """Title and labels of a panel, light lines behind what it shows."""
    axes.set_title(title, loc="left", fontsize=NORMAL, fontweight="bold", parse_math=False)
    axes.set_xlabel(xlabel, fontsize=SMALL)
    axes.set_ylabel(ylabel, fontsize=SMALL)
    axes.tick_params(labelsize=SMALL, color=GREY, length=3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(GREY)
    axes.set_axisbelow(True)
    if grid:
        axes.grid(axis=grid, color=LIGHT, linewidth=0.6)


def say(axes: Any, words: str) -> None:
    """In the middle of a panel that has nothing to show, why."""
    axes.text(0.5, 0.5, words, ha="center", va="center", fontsize=NORMAL, color=GREY, transform=axes.transAxes)


def legend(axes: Any, **more: Any) -> None:
    """Without a box."""
    axes.legend(**{"fontsize": SMALL, "frameon": False, "handlelength": 2.4} | more)


def legend_below(axes: Any, num_names: int) -> None:
    """In three columns below a panel as wide as the picture: its first names, so that it stays as wide."""
    handles, labels = axes.get_legend_handles_labels()
    legend(axes, handles=handles[:num_names], labels=labels[:num_names], loc="upper center",
           bbox_to_anchor=(0.5, -0.24), ncols=3)  # fmt: skip


def label_ends(axes: Any, ends: Sequence[tuple[float, float, str, str]]) -> None:
    """Write to the right of a panel what its lines are, each at its end (x, y, text, colour), and none over another.

    Call it when the panel's axes are as they shall be.
    """
    texts = [
        axes.annotate(
            text, (x, y), (1.01, 0.5), textcoords="axes fraction", color=_darker(color), fontsize=SMALL, va="center"
        )
        for x, y, text, color in sorted(ends, key=lambda end: end[1])
    ]
    axes.figure.draw_without_rendering()  # So that the panel has its place.
    height, least = axes.get_window_extent().height, 0.0
    gap = 1.35 * SMALL * axes.figure.dpi / 72 / height
    for place, text in enumerate(texts):
        own = axes.transAxes.inverted().transform(axes.transData.transform(text.xy))[1]
        least = max(least, min(own, 1 - gap * (len(texts) - 1 - place)))
        text.set_position((1.01, least))
        least += gap


def _darker(color: str) -> tuple[float, ...]:
    """For texts: thin letters in a light colour are hard to read."""
    from matplotlib.colors import to_rgb

    return tuple(0.7 * part for part in to_rgb(color))


def human(value: float, digits: int = 3) -> str:
    """A number as people say it: 1.5 k, 20 M; one of more than three digits is written whole: 1,002."""
    value = float(f"{value:.{digits}g}")
    if value != float(f"{value:.3g}") and abs(value) < 1e6:
        return f"{value:,g}"
    for size, unit in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if abs(value) >= size:
            return f"{value / size:g}{unit}"
    return f"{value:g}"


def human_ticks(*axes: Any) -> None:
    """Numbers at these axes (`panel.xaxis`, `panel.yaxis`) as people say them."""
    for axis in axes:
        axis.set_major_formatter(lambda value, _: human(value, 6))


def count_x(axes: Any, counts: Sequence[int], most: int = 8) -> None:
    """A logarithmic axis of numbers of ranks or envs; at most so many of them are written."""
    axes.set_xscale("log", base=2)
    shown = counts[:: -(-len(counts) // most)]
    axes.set_xticks(shown, labels=[f"{count:,}" for count in shown])
    axes.tick_params(axis="x", which="minor", bottom=False)
    axes.set_xlim(counts[0] / 1.25, counts[-1] * 1.25)


def log_y(axes: Any) -> None:
    """A logarithmic axis of rates or times with two or more numbers on it; call it when all is drawn."""
    from matplotlib.ticker import LogLocator

    axes.set_yscale("log")
    low, high = axes.get_ylim()
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high / low < 40 else (1,)))
    human_ticks(axes.yaxis)
    axes.tick_params(axis="y", which="minor", left=False, labelleft=False)


def save_study(figure: Any, stem: str) -> list[str]:
    """Draw it into a file of each of `KINDS`; return their names."""
    return [save(figure, "plot", stem + kind) for kind in KINDS]


def save(figure: Any, what: str, path: str) -> str:
    """Draw it into a file, of the kind that the name says, or else a PNG; return its name.

    Raises
    ------
    UsageError
        matplotlib cannot write such a file.
    """
    if not os.path.basename(path):
        raise UsageError(f"{what} must name a file, got {path!r}")
    if not os.path.splitext(path)[1]:
        path += ".png"
    try:
        figure.savefig(path, dpi=DOTS_PER_INCH)
    except FileNotFoundError as error:
        folder = os.path.dirname(path)
        raise UsageError(f"{what} {path}: there is no folder {folder}; mkdir -p {quote(folder)}") from error
    except (OSError, ValueError) as error:
        raise UsageError(f"{what} {path}: {error}") from error
    return path
