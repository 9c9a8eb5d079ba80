"""How all pictures look: colours, numbers, legends, and where a title and the fine print are.

A picture is 8 inches wide: its smallest text can still be read where it is shown 800 pixels wide.  The colours are
those of Okabe and Ito: people who see no red or no green tell them apart.  A marker, a kind of line or a hatch tells
the same, for print in black and white.  Needs the extra `plots`; draws into files, never to a screen.
"""

import os
from collections.abc import Sequence
from textwrap import fill
from typing import TYPE_CHECKING, Any, Literal

from mpi_rollout.errors import StorageError, UsageError
from mpi_rollout.text import pip_install, system_words

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

Grid = Literal["both", "x", "y", ""]
KINDS = (".png", ".svg")  # The formats of a study's pictures.
WIDTH, DOTS_PER_INCH = 8.0, 150  # WIDTH in inches.
TITLE, NORMAL, SMALL, FINE = 12, 9, 8, 7  # Sizes of texts in points.
BLUE, ORANGE, GREEN, RED, SKY, PURPLE = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#56B4E9", "#CC79A7"
DARK, GREY, LIGHT = "0.25", "0.45", "0.87"
# Colour and hatch of words for time.  BLUE is what this program has measured of itself, grey what it is compared with.
TIME = {
    "envs": (SKY, ""),
    **dict.fromkeys(("imbalance", "wait"), (LIGHT, "///")),
    **dict.fromkeys(("exchange", "gather"), (GREEN, "\\\\\\")),
    "send": (PURPLE, ""),
    "policy": (ORANGE, "..."),
    "write": (RED, ""),
}
LINES, MARKERS = ("-", "--", "-.", ":"), "os^Dv<Xp>*P"
Look = dict[str, Any]  # Keyword arguments of matplotlib.


def look(place: int, number: int) -> dict[str, str]:
    """Return the look of one of so many lines that are all of this program: a blue, from dark to light."""
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    color = to_hex(colormaps["Blues"](1 - 0.65 * place / max(1, number - 1)))
    return {"color": color, "linestyle": LINES[place % len(LINES)], "marker": MARKERS[place % len(MARKERS)]}


def new_figure(what: str, height: float) -> "Figure":
    """Make an empty figure, `height` in inches.

    `what` is the option or command that needs it: UsageError names it if matplotlib is missing.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UsageError(f"{what} needs matplotlib; {pip_install('[plots]')}") from error
    return Figure(figsize=(WIDTH, height), layout="constrained")


def head(figure: "Figure", title: str, fine: Sequence[str]) -> None:
    """Put the title above all panels, and the fine print below them."""
    figure.suptitle(fill(title, 72), x=0.01, ha="left", fontsize=TITLE, fontweight="bold", parse_math=False)
    print_ = "\n".join(fill(line, 150) for line in fine if line)
    figure.supxlabel(print_, x=0.01, ha="left", fontsize=FINE, color=GREY, parse_math=False)
    figure.set_layout_engine("constrained", w_pad=0.08, h_pad=0.08, hspace=0.04)


def frame(axes: "Axes", title: str = "", xlabel: str = "", ylabel: str = "", grid: Grid = "both") -> None:
    """Give a panel its title and labels, and light lines behind what it shows."""
    axes.set_title(title, loc="left", fontsize=NORMAL, fontweight="bold", parse_math=False)
    axes.set_xlabel(xlabel, fontsize=SMALL)
    axes.set_ylabel(ylabel, fontsize=SMALL)
    axes.tick_params(labelsize=SMALL, color=GREY, length=3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(GREY)
    axes.set_axisbelow(True)
    if grid:
        axes.grid(axis=grid, color=LIGHT, linewidth=0.6)


def say(axes: "Axes", words: str) -> None:
    """Say in the middle of a panel why it has nothing to show; its axes then have no numbers."""
    axes.set_xticks([]), axes.set_yticks([])
    axes.text(0.5, 0.5, words, ha="center", va="center", fontsize=NORMAL, color=GREY, transform=axes.transAxes)


def legend(axes: "Axes", **more: object) -> None:
    """Draw a legend without a box."""
    axes.legend(**{"fontsize": SMALL, "frameon": False, "handlelength": 2.4} | more)


def legend_below(axes: "Axes", num_names: int) -> None:
    """Draw a legend of the first names in three columns below a panel that is as wide as the picture."""
    handles, labels = axes.get_legend_handles_labels()
    names = {"handles": handles[:num_names], "labels": labels[:num_names]}
    legend(axes, **names, loc="upper center", bbox_to_anchor=(0.5, -0.24), ncols=3)


def human(value: float, digits: int = 3) -> str:
    """Return a number as people say it: 1.5 k, 20 M; one with more than three digits is written in full: 1,002."""
    value = float(f"{value:.{digits}g}")
    if value != float(f"{value:.3g}") and abs(value) < 1e6:
        return f"{value:,g}"
    for size, unit in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if abs(value) >= size:
            return f"{value / size:g}{unit}"
    return f"{value:g}"


def human_ticks(*axes: "Axis") -> None:
    """Write the numbers at these axes (`panel.xaxis`, `panel.yaxis`) as people say them."""
    for axis in axes:
        axis.set_major_formatter(lambda value, _: human(value, 6))


def count_x(axes: "Axes", counts: Sequence[int], most: int = 8) -> None:
    """Make x a logarithmic axis of numbers of ranks or envs; write at most `most` of them."""
    axes.set_xscale("log", base=2)
    shown = counts[:: -(-len(counts) // most)]
    axes.set_xticks(shown, labels=[f"{count:,}" for count in shown])
    axes.tick_params(axis="x", which="minor", bottom=False)
    axes.set_xlim(counts[0] / 1.25, counts[-1] * 1.25)


def save_study(figure: "Figure", stem: str) -> list[str]:
    """Draw a figure into a file of each of `KINDS`; return their names."""
    return [save(figure, "plot", stem + kind) for kind in KINDS]


def save(figure: "Figure", what: str, path: str) -> str:
    """Draw a figure into a file of the kind that its name says, or a PNG; return the file's name.

    UsageError if matplotlib cannot write such a file; StorageError if none can be written there.
    """
    if not os.path.basename(path):
        raise UsageError(f"{what} must name a file, got {path!r}")
    if not os.path.splitext(path)[1]:
        path += ".png"
    if os.path.exists(path) and not os.path.isfile(path):
        raise UsageError(f"{what} {path}: there is a folder, device, pipe or socket of that name; give another one")
    try:
        figure.savefig(path, dpi=DOTS_PER_INCH)
    except OSError as error:
        raise StorageError(f"{what} {path}: {system_words(error)}") from error
    except ValueError as error:
        raise UsageError(f"{what} {path}: {error}") from error
    return path
