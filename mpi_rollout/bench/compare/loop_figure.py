"""The picture of `multiples`: how many times as fast as a bare loop."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from mpi_rollout.bench.compare import report
from mpi_rollout.bench.compare.analysis import Analysis
from mpi_rollout.bench.compare.comparison import ComparisonFile
from mpi_rollout.bench.compare.multiples import FIRST_NATIVE, ROWS, Multiple, multiples
from mpi_rollout.commands import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_LINEAR = 10


def picture(file: ComparisonFile, analysis: Analysis, envs: list[str]) -> "Figure":
    """Draw a panel for each env, a bar for each row."""
    of_env = {env: {each.row: each for each in multiples(analysis, env)} for env in envs}
    rows = [row for row in ROWS if any(row in found for found in of_env.values())]
    figure = style.new_figure("plot", 1.5 + 0.24 * len(rows))
    fine = (
        "Each system with the number of envs that suits it best, medians and intervals. Hatched: the task is "
        "implemented anew, in C++, NumPy, a kernel or JAX; no bar: not measured or not there. "
    )
    style.head(figure, "Times as fast as a Python for-loop over the envs", [report.title(file), fine])
    panels = figure.subplots(1, len(envs), squeeze=False, sharey=True)[0]
    for axes, (env, found) in zip(panels, of_env.items(), strict=True):
        style.frame(axes, env, "times the for-loop on one core", grid="x")
        is_wide = _is_wide(found.values())
        if is_wide:
            axes.set_xscale("log")
        for place, row in enumerate(rows):
            if row in found:
                _plot_bar(axes, place, found[row])
        axes.tick_params(axis="y", length=0)
        axes.axvline(1, color=style.GREY, linestyle="--", linewidth=1)
        low, high = axes.get_xlim()
        axes.set_xlim(low, high * (high / low) ** 0.22 if is_wide else 1.2 * high)  # Room for the numbers.
        style.human_ticks(axes.xaxis)
    panels[0].set_yticks(range(len(rows)), labels=rows)
    panels[0].invert_yaxis()
    return figure


def _is_wide(found: Iterable[Multiple]) -> bool:
    """Tell whether ratios need a logarithmic axis."""
    medians = [multiple.ratio.median for multiple in found]
    return max(medians) > MOST_LINEAR or min(medians) < 1 / MOST_LINEAR


def _plot_bar(axes: "Axes", place: int, multiple: Multiple) -> None:
    is_ours, is_native = "mpi_rollout" in multiple.row, [*ROWS].index(multiple.row) >= [*ROWS].index(FIRST_NATIVE)
    ratio, color = multiple.ratio, style.BLUE if is_ours else "0.75"
    axes.barh(place, ratio.median, 0.7, color=color, hatch="///" if is_native else "", edgecolor="w", linewidth=0)
    axes.plot([ratio.low, ratio.high], [place, place], color=style.DARK, linewidth=1)
    words = f" {ratio.median:.2g}" if ratio.median < 10 else f" {style.human(ratio.median)}"
    weight, box = "bold" if is_ours else "normal", {"facecolor": "w", "edgecolor": "none", "pad": 0}
    end = max(ratio.median, ratio.high)
    axes.text(end, place, words, va="center", fontsize=style.SMALL, fontweight=weight, bbox=box)
