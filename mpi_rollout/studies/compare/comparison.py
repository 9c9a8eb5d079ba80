"""Turn by turn in random order, each in a process of its own; then the table of medians, and who is fastest."""

import json
import os
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from mpi_rollout.core.option_values import check_seconds
from mpi_rollout.errors import Option, RolloutError, UsageError
from mpi_rollout.process.clock import utc_now
from mpi_rollout.process.console import say, show
from mpi_rollout.process.host import num_usable_cores
from mpi_rollout.studies.compare.systems import Setup, System, chosen, systems_of
from mpi_rollout.studies.compare.turn import Turn
from mpi_rollout.studies.jobs import JobFailed, JobOptions, Options, check_scipy, in_order, run_job, usable_launcher
from mpi_rollout.studies.statistics import median_interval, ratio
from mpi_rollout.studies.study_file import machine_facts, place_and_time
from mpi_rollout.text import aligned, counted

NOTES = (
    "medians and intervals over turns, each of a process of its own; `or` stands between systems whose intervals meet",
    "EnvPool: another implementation of the env",
)


class TakenTurn(NamedTuple):
    """One turn of a system, or why there is none."""

    system: str
    repeat: int
    turn: Turn | None
    error: str = ""


def measure(
    setup: Setup, systems: Sequence[System], jobs: JobOptions, window_s: float, pythons: Mapping[str, str]
) -> Iterator[TakenTurn]:
    """Yield the turns of all systems, in another random order in each repeat; one that fails has no more.

    `pythons` are those of systems that another Python has, by the package that they need.
    """
    launcher = usable_launcher(jobs.launcher) if any(system.num_ranks for system in systems) else ""
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # Systems share the cores; pools of threads would use them all.
    given = json.dumps({"env": setup.env, "num_envs": setup.num_envs, "num_cores": setup.num_cores})
    failed = set()
    with TemporaryDirectory() as folder:
        for repeat, system in in_order(systems, jobs):
            if system.name in failed:
                continue
            ranks = [*shlex.split(launcher), "-n", str(system.num_ranks)] if system.num_ranks else []
            module = [*(["-m", "mpi4py"] if ranks else []), "-m", "mpi_rollout.studies.compare.turn"]  # One ends all.
            words = [system.maker, str(window_s), given, *(["rank"] if ranks else [])]
            command = [*ranks, pythons.get(system.needs, sys.executable), *module, *words]
            try:
                printed = run_job(command, Path(folder), jobs.timeout_s)
                yield TakenTurn(system.name, repeat, Turn(**{name: printed[name] for name in Turn._fields}))
            except JobFailed as error:
                failed.add(system.name)
                say(f"mpi_rollout: {system.title} failed: {str(error).splitlines()[0]}\n")
                yield TakenTurn(system.name, repeat, None, str(error))


def compare(
    env: Options, num_envs: int, num_ranks: int | None, names: str, window_s: float, as_json: bool, jobs: JobOptions
) -> int:
    """Measure the systems that are named and apply; print the table, or all samples as one line of JSON.

    RolloutError if some systems failed, which was no reason to stop.
    """
    num_cores = num_usable_cores()
    num_ranks = num_cores if num_ranks is None else num_ranks
    if num_ranks < 1:
        raise UsageError(f"--ranks must be at least 1, got {num_ranks}")
    check_seconds(Option("window_s"), window_s)
    check_scipy()
    systems, setup = chosen(names, systems_of(num_ranks, num_cores)), Setup(env, num_envs, num_cores)
    setup.make(0).close()  # What is wrong of the env is said once, and at once.
    reasons = {system: why for system in systems if (why := system.reason_to_skip(setup))}
    applying = [system for system in systems if system not in reasons]
    skipped = [f"skipped: {system.title}: {why}" for system, why in reasons.items()]
    if jobs.dry_run:
        show([*(f"{system.name}: {system.title}" for system in applying), *skipped])
        return 0
    started, samples = utc_now(), list(measure(setup, applying, jobs, window_s, {}))
    facts, host = machine_facts(), os.uname().nodename
    if as_json:
        rows = [sample._asdict() | {"turn": sample.turn and sample.turn._asdict()} for sample in samples]
        show([json.dumps({"host": host, "started": started, **facts, "env": env, "samples": rows})])
    else:
        point = f"{env['env'] or env['env_factory']}, {counted(num_envs, 'env')}"
        head = f"{point}: {place_and_time(host, facts, [], started)}", f"with {facts['versions']}", ""
        show([*head, *lines(applying, samples), "", *NOTES, *skipped])
    if failed := [sample.system for sample in samples if sample.error]:
        raise RolloutError(f"{', '.join(failed)} failed; the others were measured")
    return 0


def lines(systems: Sequence[System], samples: Sequence[TakenTurn]) -> list[str]:
    """Return the table, and who is fastest among those that step the env itself, and among all."""
    taken: dict[str, list[float]] = {}
    for sample in samples:
        if sample.turn is not None:
            taken.setdefault(sample.system, []).append(sample.turn.env_steps / sample.turn.seconds)
    rates = {name: median_interval(some) for name, some in taken.items()}
    table = [["", "env steps/s", "interval", "over the bare loop"]]
    for system in systems:
        if system.name in rates:
            rate = rates[system.name]
            over = f"{ratio(rate, rates['bare']).median:.3g}" if "bare" in rates else "-"
            table.append([system.title, f"{rate.median:,.0f}", f"{rate.low:,.0f} to {rate.high:,.0f}", over])
    text, named = [*aligned(table, 1), ""], list[str]()
    for words, kinds in (("fastest", ("step",)), ("fastest of all", ("step", "native"))):
        ranked = [system for system in systems if system.name in rates and system.kind in kinds]
        ranked.sort(key=lambda system: -rates[system.name].median)
        # The highest median comes first, then the systems whose intervals reach its own.
        titles = [each.title for each in ranked if rates[each.name].high >= rates[ranked[0].name].low]
        if titles and titles != named:  # Else no native env is faster, or none was measured.
            text.append(f"{words}: {' or '.join(titles)}")
        named = titles
    return text
