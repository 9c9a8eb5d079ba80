"""What a comparison shows, as text."""

from collections.abc import Callable, Sequence

from mpi_rollout.compare.analysis import Analysis, Cell
from mpi_rollout.compare.comparison import Point
from mpi_rollout.compare.file import ComparisonFile
from mpi_rollout.scaling.report import machine
from mpi_rollout.scaling.statistics import Fit, NoFit

OVERHEADS = ("t_os us", "t_row us", "t_row / t_env", "fit within", "held out", "reset ms", "reset us per env")


def lines(file: ComparisonFile) -> list[str]:
    """All of it."""
    analysis = Analysis(file.comparison, file.samples)
    told = [title(file), f"with {file.facts['versions']}"]
    for env in file.comparison.envs:
        if analysis.systems(env):
            told += ["", *of_env(analysis, env)]
    if analysis.cells:
        told += ["", *notes(analysis)]
    return told + skipped(file) + failed(file)


def title(file: ComparisonFile) -> str:
    """What was measured where and when."""
    comparison = file.comparison
    return (
        f"env steps per second with {_list(comparison.num_envs)} envs, {comparison.repeats} turns of "
        f"{comparison.window_s:g} s each: {machine(file)}, {file.origin['started'][:10]}"
    )


def of_env(analysis: Analysis, env: str) -> list[str]:
    """The tables of one env, and who is ahead."""
    return [
        f"{env}: env steps/s, median and how far its interval reaches",
        *matrix(analysis, env, _rate),
        "",
        f"{env}: over the bare loop on one core",
        *matrix(analysis, env, _ratio),
        "",
        f"{env}: overheads",
        *overheads(analysis, env),
        "",
        *fastest(analysis, env),
        *crossovers(analysis, env),
    ]


def matrix(analysis: Analysis, env: str, told: Callable[[Cell], str]) -> list[str]:
    """A line for each system, a column for each number of envs."""
    titles, sizes = analysis.comparison.all_systems, analysis.comparison.num_envs
    rows = [("envs", *(f"{each:,}" for each in sizes))]
    for name in analysis.systems(env):
        cells = [analysis.cells.get((Point(env, num_envs), name)) for num_envs in sizes]
        rows.append((titles[name].title, *(told(cell) if cell else "-" for cell in cells)))
    return aligned(rows)


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns to the right, but for the first."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip() for row in rows
    ]  # fmt: skip


def _rate(cell: Cell) -> str:
    found = cell.rate
    reach = max(found.high - found.median, found.median - found.low) / found.median
    return f"{found.median:,.0f} ±{100 * reach:.0f}%"


def _ratio(cell: Cell) -> str:
    return f"{cell.ratio.median:.3g}" if cell.ratio else "-"


def overheads(analysis: Analysis, env: str) -> list[str]:
    """What a step of the batch costs besides its rows, and what a reset costs."""
    rows = [("", *OVERHEADS)]
    for name in analysis.systems(env):
        num_envs = analysis.sizes(env, [name])[-1]
        reset_s = analysis.cells[Point(env, num_envs), name].reset_s.median
        resets = (f"{reset_s * 1e3:.2f} ({num_envs:,})", f"{reset_s / num_envs * 1e6:.1f}")
        rows.append((analysis.comparison.all_systems[name].title, *_fitted(analysis, env, name), *resets))
    return aligned(rows)


def _fitted(analysis: Analysis, env: str, name: str) -> tuple[str, ...]:
    found, env_step_s = analysis.overhead(env, name), analysis.env_step_s(env)
    if isinstance(found, NoFit):
        return ("-", "-", "-", str(found), "-")
    return (*_times(found), f"{found.coefficients[0] / env_step_s:.3f}" if env_step_s else "-", *_checks(found))


def _times(found: Fit) -> tuple[str, str]:
    row_s, overhead_s = found.coefficients
    return f"{overhead_s * 1e6:.1f}", f"{row_s * 1e6:.3f}"


def _checks(found: Fit) -> tuple[str, str]:
    return f"{100 * found.worst_error:.0f}%", f"{100 * found.held_out_error:+.0f}%"


def fastest(analysis: Analysis, env: str) -> list[str]:
    """Who has the highest median with each number of envs."""
    told = []
    for num_envs in analysis.comparison.num_envs:
        names = analysis.fastest(env, num_envs)
        if names:
            titles = [analysis.comparison.all_systems[name].title for name in names]
            near = f"; within their intervals: {', '.join(titles[1:])}" if titles[1:] else ""
            told.append(f"fastest with {num_envs:,} env{'s' * (num_envs > 1)}: {titles[0]}{near}")
    return told


def crossovers(analysis: Analysis, env: str) -> list[str]:
    """Where this program is faster than each of the others."""
    told = []
    for name in analysis.systems(env):
        system = analysis.comparison.all_systems[name]
        if system.is_ours or system.kind == "base":
            continue
        sizes, ahead = analysis.ahead(env, name)
        told += [f"mpi_rollout is faster than {system.title} {where(sizes, ahead)}"] if sizes else []
        sizes, ahead = analysis.ahead(env, name, "native") if system.kind == "native" else ([], [])
        told += [f"with vector_entry_point it is faster than {system.title} {where(sizes, ahead)}"] if sizes else []
    return told


def where(sizes: list[int], ahead: list[int]) -> str:
    """At which of the numbers of envs, in words."""
    if not ahead:
        return f"at none of {_list(sizes)} envs"
    if ahead == sizes:
        return f"at all of {_list(sizes)} envs"
    if ahead == sizes[-len(ahead) :]:
        return f"from {ahead[0]:,} envs on, not with {_list(sizes[: -len(ahead)])}"
    return f"with {_list(ahead)} of {_list(sizes)} envs"


def notes(analysis: Analysis) -> list[str]:
    """What the tables mean."""
    coverage = min(cell.rate.coverage for cell in analysis.cells.values())
    return [
        f"medians over turns; ±: the interval that holds the true median with a probability of {100 * coverage:.0f} % "
        "or more",
        "t_os, t_row: a step of N envs takes N t_row + t_os; t_env: an env step in the bare loop; reset: of all envs "
        "at once, with the most envs that were measured",
    ]


def skipped(file: ComparisonFile) -> list[str]:
    """What does not apply, and why: a line for each reason."""
    found: dict[tuple[str, str, str], list[int]] = {}
    for skip in file.samples.skips:
        found.setdefault((skip.system, skip.env, skip.reason), []).append(skip.num_envs)
    merged: dict[tuple[str, str, str], list[str]] = {}
    for (system, env, reason), sizes in found.items():
        where_ = "" if sizes == list(file.comparison.num_envs) else f" with {_list(sizes)} envs"
        merged.setdefault((system, where_, reason), []).append(env)
    titles = file.comparison.all_systems
    return [
        f"skipped: {titles[system].title}{where_} ({', '.join(envs)}): {reason}"
        for (system, where_, reason), envs in merged.items()
    ]


def failed(file: ComparisonFile) -> list[str]:
    """What has failed, and how."""
    titles = file.comparison.all_systems
    return [
        f"failed: {titles[sample.system].title}, {sample.point}: {sample.error.splitlines()[0]}"
        for sample in file.samples.failed
    ]


def _list(numbers: Sequence[int]) -> str:
    return ", ".join(f"{each:,}" for each in numbers)
