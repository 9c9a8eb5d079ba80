"""What a comparison shows, as text."""

from collections.abc import Callable, Sequence

from mpi_rollout.bench.compare.analysis import VERDICTS, Analysis, Cell, Standing
from mpi_rollout.bench.compare.comparison import Point
from mpi_rollout.bench.compare.file import ComparisonFile
from mpi_rollout.bench.statistics import Fit, NoFit
from mpi_rollout.bench.text import machine

# In which of its ways this program is compared with a system of some kind, and how that is told.
_LOOP, _NATIVE = {"loop": "mpi_rollout"}, {"native": "mpi_rollout with vector_entry_point"}
KINDS = {"loop": _LOOP, "native": _LOOP | _NATIVE, "record": {"record": "mpi_rollout, recording,"}}
MOST_NAMED = 3  # Of systems whose intervals meet.
QUIET = 0.85  # Of what as many cores should do; clocks and caches take a little.
OVERHEADS = ("t_os us", "t_row us", "t_row / t_env", "fit within", "held out", "reset ms (envs)", "reset us per env")


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
        f"env steps per second with {_envs(comparison.num_envs)}, {comparison.repeats} turns of "
        f"{comparison.window_s:g} s each: {machine(file.origin['host'], file.facts)}, {file.origin['started'][:10]}"
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
    """Who has the highest median with each number of envs, among those that step the env itself and among all."""
    told: list[str] = []
    for num_envs in analysis.comparison.num_envs:
        itself, any_ = (_either(analysis, env, num_envs, kinds) for kinds in (("loop",), ("loop", "native")))
        if itself:
            told.append(f"fastest with {_envs([num_envs])}: {itself}" + f"; of all: {any_}" * (any_ != itself))
        elif any_:
            told.append(f"fastest with {_envs([num_envs])}: {any_}")
    return told


def _either(analysis: Analysis, env: str, num_envs: int, kinds: Sequence[str]) -> str:
    names = analysis.fastest(env, num_envs, kinds)
    titles = [analysis.comparison.all_systems[name].title for name in names]
    more = [f"{len(titles) - MOST_NAMED} more"] if len(titles) > MOST_NAMED else []
    return " or ".join(titles[:MOST_NAMED] + more)


def crossovers(analysis: Analysis, env: str) -> list[str]:
    """Where this program is faster or slower than each of the others, and which of its ways that is."""
    told = []
    for name in analysis.systems(env):
        system = analysis.comparison.all_systems[name]
        if system.is_ours or system.kind == "base":
            continue
        for kind, words in KINDS[system.kind].items():
            standings = analysis.standings(env, name, kind)
            told += [f"{words} beside {system.title}: {_standing(analysis, standings)}"] if standings else []
    return told


def _standing(analysis: Analysis, standings: Sequence[Standing]) -> str:
    sizes, titles, told = [each.num_envs for each in standings], analysis.comparison.all_systems, []
    for verdict in VERDICTS:
        found = [each for each in standings if each.verdict == verdict]
        ways = dict.fromkeys(titles[each.way].title.removeprefix("mpi_rollout, ") for each in found)
        if found:
            told.append(f"{verdict} {where(sizes, [each.num_envs for each in found])} ({' or '.join(ways)})")
    return "; ".join(told)


def where(sizes: list[int], found: list[int]) -> str:
    """At which of the numbers of envs, in words."""
    if found == sizes and len(sizes) > 1:
        return f"at all sizes measured: {_envs(sizes)}"
    is_end = len(found) > 1 and found == sizes[-len(found) :]  # One size alone tells of no other.
    return f"from {_envs(found[:1])} on" if is_end else f"with {_envs(found)}"


def notes(analysis: Analysis) -> list[str]:
    """What the tables mean."""
    coverage = min(cell.rate.coverage for cell in analysis.cells.values())
    return [
        f"medians over turns; ±: the interval that holds the true median with a probability of {100 * coverage:.0f} % "
        "or more; or: their intervals meet",
        "faster, slower: their intervals are apart; all turns are of one start of the processes, and another start may "
        "differ by more than the intervals say",
        "t_os, t_row: N transitions take N t_row + t_os, and t_env each in the bare loop; a t_os below 0 means "
        "that the rows cost more the fewer they are, as where each is a message",
        "reset: of all envs at once, with the most envs that were measured",
        *disturbance(analysis),
    ]


def disturbance(analysis: Analysis) -> list[str]:
    """A line if bare loops on all cores show that these are not all there."""
    num_cores = analysis.comparison.num_cores
    shares = [
        cell.ratio.median / num_cores
        for (_, name), cell in analysis.cells.items()
        if name == "bare-all" and cell.ratio is not None
    ]
    if not shares or min(shares) >= QUIET:
        return []
    return [
        f"{num_cores} bare loops at once went at {min(shares):.2f} of {num_cores} times the speed of one at worst: "
        "other work ran on this machine and these figures are not these systems', or its cores share what they need"
    ]


def skipped(file: ComparisonFile) -> list[str]:
    """What does not apply, and why: a line for each reason."""
    found: dict[tuple[str, str, str], list[int]] = {}
    for skip in file.samples.skips:
        found.setdefault((skip.system, skip.env, skip.reason), []).append(skip.num_envs)
    merged: dict[tuple[str, str, str], list[str]] = {}
    for (system, env, reason), sizes in found.items():
        where_ = "" if sizes == list(file.comparison.num_envs) else f" with {_envs(sizes)}"
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


def _envs(numbers: Sequence[int]) -> str:
    return ", ".join(f"{each:,}" for each in numbers) + (" env" if list(numbers) == [1] else " envs")
