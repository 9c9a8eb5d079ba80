"""What a comparison shows, as text."""

from collections.abc import Callable, Sequence

from mpi_rollout.bench.compare import multiples, published
from mpi_rollout.bench.compare.analysis import VERDICTS, Analysis, Cell, Standing
from mpi_rollout.bench.compare.comparison import ComparisonFile, Point
from mpi_rollout.bench.compare.systems import FORMS
from mpi_rollout.bench.statistics import NoFit
from mpi_rollout.bench.tables import aligned
from mpi_rollout.bench.workplace import place_and_time

GROUPS = {
    "the env itself": ("base", "loop", "ahead", "sampler"),
    "another implementation of the same task": ("native", "native-ahead"),
    "recording": ("record",),
}
"""The parts of a table, with the kinds of systems that they have."""
# By a system's kind: which of its ways this program is compared with it, and the words for that.
_LOOP = {"loop": "mpi_rollout", "ahead": "mpi_rollout with actions known ahead"}
KINDS = {
    "loop": _LOOP,
    "sampler": {"sampler": "mpi_rollout, run,"},
    "native": _LOOP | {"native": "mpi_rollout with {form}", "native-ahead": "mpi_rollout with {form}, run,"},
    "native-ahead": {"native-ahead": "mpi_rollout with {form}, run,"},
    "record": {"record": "mpi_rollout, recording,"},
}
STEPPING = ("loop", "ahead", "sampler", "native", "native-ahead")
MOST_NAMED = 3  # Of systems whose intervals meet.
QUIET = 0.85  # Of what as many cores should do; clocks and caches take a little.
OVERHEADS = ("t_os us", "t_row us", "t_row / t_env", "fit within", "held out", "reset ms (envs)", "reset us per env")


def lines(file: ComparisonFile) -> list[str]:
    """Return all of it."""
    analysis = Analysis(file.comparison, file.samples)
    text = [title(file), f"with {file.facts['versions']}"]
    for env in file.comparison.envs:
        if analysis.systems(env):
            text += ["", *env_lines(analysis, env)]
    if analysis.cells:
        text += ["", *notes(analysis)]
    return text + skipped(file) + failed(file) + published.lines(file)


def title(file: ComparisonFile) -> str:
    """Say what was measured where and when."""
    comparison = file.comparison
    where = place_and_time(file.origin["host"], file.facts, [], file.origin["started"])
    return (
        f"env steps per second with {_envs(comparison.sizes)}, {comparison.jobs.repeats} turns of "
        f"{comparison.window_s:g} s each: {where}"
    )


def env_lines(analysis: Analysis, env: str) -> list[str]:
    """Return the tables of one env, and who is ahead."""
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
        f"{env}: times the bare loop on one core, each with the number of envs that suits it best",
        *multiples.lines(analysis, env),
        "",
        *fastest(analysis, env),
        *crossovers(analysis, env),
    ]


def matrix(analysis: Analysis, env: str, words: Callable[[Cell], str]) -> list[str]:
    """Return a line for each system, a column for each number of envs."""
    titles, sizes = analysis.comparison.all_systems, analysis.comparison.sizes
    rows = {}
    for name in analysis.systems(env):
        cells = [analysis.cells.get((Point(env, num_envs), name)) for num_envs in sizes]
        rows[name] = [titles[name].title, *(words(cell) if cell else "-" for cell in cells)]
    return grouped(analysis, ["envs", *(f"{num_envs:,}" for num_envs in sizes)], rows)


def grouped(analysis: Analysis, head: list[str], rows: dict[str, list[str]]) -> list[str]:
    """Lay out a row for each system, below the name of its group where there are several."""
    systems = analysis.comparison.all_systems
    groups = {title: [name for name in rows if systems[name].kind in kinds] for title, kinds in GROUPS.items()}
    table, is_one = [head], sum(map(bool, groups.values())) == 1
    for title, names in groups.items():
        if names and not is_one:
            table.append([f"-- {title}", *[""] * (len(head) - 1)])
        table += [rows[name] for name in names]
    return aligned(table, names_left=True)


def _rate(cell: Cell) -> str:
    rate = cell.rate
    reach = max(rate.high - rate.median, rate.median - rate.low) / rate.median
    return f"{rate.median:,.0f} ±{100 * reach:.0f}%"


def _ratio(cell: Cell) -> str:
    return f"{cell.ratio.median:.3g}" if cell.ratio else "-"


def overheads(analysis: Analysis, env: str) -> list[str]:
    """Say what a step of the batch costs besides its rows, and what a reset costs."""
    rows = {}
    for name in analysis.systems(env):
        num_envs = analysis.sizes(env, [name])[-1]
        reset_s = analysis.cells[Point(env, num_envs), name].reset_s.median
        resets = (f"{reset_s * 1e3:.2f} ({num_envs:,})", f"{reset_s / num_envs * 1e6:.1f}")
        rows[name] = [analysis.comparison.all_systems[name].title, *_fitted(analysis, env, name), *resets]
    return grouped(analysis, ["", *OVERHEADS], rows)


def _fitted(analysis: Analysis, env: str, name: str) -> tuple[str, ...]:
    law, env_step_s = analysis.overhead(env, name), analysis.env_step_s(env)
    if isinstance(law, NoFit):
        return ("-", "-", "-", str(law), "-")
    row_s, overhead_s = law.coefficients
    times = f"{overhead_s * 1e6:.1f}", f"{row_s * 1e6:.3f}", f"{row_s / env_step_s:.3f}" if env_step_s else "-"
    return *times, f"{100 * law.worst_error:.0f}%", f"{100 * law.held_out_error:+.0f}%"


def fastest(analysis: Analysis, env: str) -> list[str]:
    """Say who has the highest median with each number of envs, among those that step the env itself and among all."""
    text: list[str] = []
    for num_envs in analysis.comparison.sizes:
        itself, any_ = (_either(analysis, env, num_envs, kinds) for kinds in (("loop",), STEPPING))
        if itself:
            text.append(f"fastest with {_envs([num_envs])}: {itself}" + f"; of all: {any_}" * (any_ != itself))
        elif any_:
            text.append(f"fastest with {_envs([num_envs])}: {any_}")
    return text


def _either(analysis: Analysis, env: str, num_envs: int, kinds: Sequence[str]) -> str:
    names = analysis.fastest(env, num_envs, kinds)
    titles = [analysis.comparison.all_systems[name].title for name in names]
    more = [f"{len(titles) - MOST_NAMED} more"] if len(titles) > MOST_NAMED else []
    return " or ".join(titles[:MOST_NAMED] + more)


def crossovers(analysis: Analysis, env: str) -> list[str]:
    """Say where this program is faster or slower than each of the others, and which of its ways that is."""
    text = []
    for name in analysis.systems(env):
        system = analysis.comparison.all_systems[name]
        if system.is_ours or system.kind == "base":
            continue
        for kind, words in KINDS[system.kind].items():
            words, form = words.format(form=FORMS.get(system.form)), system.form if kind.startswith("native") else ""
            standings = analysis.standings(env, name, kind, form)
            text += [f"{words} beside {system.title}: {_standing(analysis, standings)}"] if standings else []
    return text


def _standing(analysis: Analysis, standings: Sequence[Standing]) -> str:
    sizes, titles, text = [standing.num_envs for standing in standings], analysis.comparison.all_systems, []
    for verdict in VERDICTS:
        some = [standing for standing in standings if standing.verdict == verdict]
        ways = dict.fromkeys(titles[standing.way].title.removeprefix("mpi_rollout, ") for standing in some)
        if some:
            text.append(f"{verdict} {where(sizes, [standing.num_envs for standing in some])} ({' or '.join(ways)})")
    return "; ".join(text)


def where(sizes: list[int], some: list[int]) -> str:
    """Say which of the numbers of envs these are."""
    if some == sizes and len(sizes) > 1:
        return f"at all sizes measured: {_envs(sizes)}"
    is_end = len(some) > 1 and some == sizes[-len(some) :]  # One size alone shows nothing of others.
    return f"from {_envs(some[:1])} on" if is_end else f"with {_envs(some)}"


def notes(analysis: Analysis) -> list[str]:
    """Say what the tables mean."""
    coverage = min(cell.rate.coverage for cell in analysis.cells.values())
    return [
        f"medians over turns; ±: the interval that holds the true median with a probability of {100 * coverage:.0f} % "
        "or more; `or` is between systems whose intervals meet",
        "faster, slower: their intervals are apart; all turns are of one start of the processes, and another start may "
        "differ by more than the intervals say",
        "t_os, t_row: N transitions take N t_row + t_os, and t_env each in the bare loop; a t_os below 0 means "
        "that the rows cost more the fewer they are, as where each is a message",
        "reset: of all envs at once, with the most envs that were measured",
        "fragments: several steps in one exchange, for actions that are known so many steps ahead, as random ones are; "
        "a policy that needs each observation takes single steps",
        "run: this program without a file; its ranks choose random actions, as collectors, EnvRunners and samplers do",
        "another implementation: the task was written anew, in C++, NumPy, a kernel or JAX; it is no other way to step "
        "the env itself",
        *disturbance(analysis),
    ]


def disturbance(analysis: Analysis) -> list[str]:
    """Return a line if bare loops on all cores show that other work takes part of them."""
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
    """Say what does not apply, and why: a line for each reason."""
    skipped_sizes: dict[tuple[str, str, str], list[int]] = {}
    for skip in file.samples.skips:
        skipped_sizes.setdefault((skip.system, skip.env, skip.reason), []).append(skip.num_envs)
    merged: dict[tuple[str, str, str], list[str]] = {}
    for (system, env, reason), sizes in skipped_sizes.items():
        where_ = (
            "" if sizes in (list(file.comparison.num_envs), list(file.comparison.sizes)) else f" with {_envs(sizes)}"
        )
        merged.setdefault((system, where_, reason), []).append(env)
    titles = file.comparison.all_systems
    return [
        f"skipped: {titles[system].title}{where_} ({', '.join(envs)}): {reason}"
        for (system, where_, reason), envs in merged.items()
    ]


def failed(file: ComparisonFile) -> list[str]:
    """Say what has failed, and how."""
    titles = file.comparison.all_systems
    return [
        f"failed: {titles[sample.system].title}, {sample.point}: {sample.error.splitlines()[0]}"
        for sample in file.samples.failed
    ]


def _envs(numbers: Sequence[int]) -> str:
    return ", ".join(f"{number:,}" for number in numbers) + (" env" if list(numbers) == [1] else " envs")
