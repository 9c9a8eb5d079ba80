"""Whether a file is what it says: every chunk of it is read, every statement that follows from others is checked."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from itertools import islice
from threading import Thread
from typing import Any

import numpy as np

from mpi_rollout.core.spaces import first_of
from mpi_rollout.errors import ContentError, DataError, RolloutError
from mpi_rollout.storage.agent_episodes import AgentSteps, agent_episodes, agent_steps, within
from mpi_rollout.storage.checked_file import CheckedFile, checked
from mpi_rollout.storage.episodes import make_table, stored_results
from mpi_rollout.storage.manifest import check_end, is_set, open_shard, read_manifest
from mpi_rollout.storage.sandbox import PATIENCE_S, answer_of, started
from mpi_rollout.storage.schema import RESET, agents_in, is_recording
from mpi_rollout.storage.set_end import check_set
from mpi_rollout.storage.stored_run import StoredRun
from mpi_rollout.storage.tail import not_continued
from mpi_rollout.storage.untrusted import Tell, attributes_of, steadily, text
from mpi_rollout.storage.values import ValueCheck, ValueChecks, merged_wrong
from mpi_rollout.text import one_line

NUM_NAMED = 3  # Damaged chunks, or shards, that a message names.
NICENESS = 10  # Of what is checked while somebody else works: a tenth of a core that both use.
LATER_PATIENCE_S = 600.0  # As `PATIENCE_S`, for a child that gets only the time which nobody else uses.


def verify(tell: Tell, path: str) -> dict[str, object]:
    """Check all of a file, complete or not; return what there is, as JSON can hold it.

    DataError if something is wrong; the message says what and where.
    """
    return _verify_set(tell, path) if is_set(path) else steadily(path, lambda: _verify(tell, path))


def _verify_set(tell: Tell, path: str) -> dict[str, object]:
    """Verify all shards of a set, and what its manifest says of them; the message has all shards that are wrong."""
    manifest = read_manifest(path)
    reports, problems = list[dict[str, Any]](), list[str]()
    for number in range(len(manifest.ranges)):
        try:
            if manifest.is_complete:
                check_end(manifest, number, path)
            reports.append(verify(tell, open_shard(manifest, number, path).path))
        except DataError as error:
            problems.append(str(error))
    if problems:
        raise DataError(_few(problems))
    with closing(StoredRun(path)) as stored:
        if manifest.is_complete:
            stored.take_tables()
            check_set(tell, path, stored)
        starts = [envs.start for envs in manifest.ranges]
        wrong = zip(starts, [report["wrong_values"] for report in reports], strict=True)
        return {
            **reports[0],
            "file": path,
            "complete": stored.is_complete,
            "num_steps": stored.num_steps,
            "episodes": len(stored.episodes),
            "shards": len(reports),
            **{name: sum(report[name] for report in reports) for name in ("chunks", "nbytes")},
            "wrong_values": merged_wrong([*wrong]),
        }


def _verify(tell: Tell, path: str) -> dict[str, object]:
    with checked(path, tell) as file:
        values = ValueChecks(file.root)
        _check_chunks(file, values.of)
        read = [file.stored.chunks(name) for name in file.counting_rows()]
        num_chunks, nbytes = sum(chunks.num_chunks for chunks in read), sum(chunks.nbytes for chunks in read)
        if file.has_trajectories and file.is_sealed:
            _check_values(file, values.of)
        return {
            "file": path,
            "complete": file.is_complete,
            "recovered": file.is_sealed and not file.is_complete,
            "limits": text(file.root, "limits") if is_recording(file.root) else "",
            "num_steps": file.num_steps,
            "episodes": _check_episodes(file) if file.has_trajectories else 0,
            "chunks": num_chunks,
            "nbytes": nbytes,
            "wrong_values": values.wrong,
        }


class LaterCheck:
    """A check of a file in a child that has given its first answer and goes on.

    A thread hears the child, so that nobody must wait.
    """

    def __init__(self, path: str):
        self._error: RolloutError | None = None
        self._is_ended = False
        with ExitStack() as kept:
            self._child = kept.enter_context(started("mpi_rollout.storage.verification:verify_later", path))
            answer_of(self._child, PATIENCE_S)
            self._kept = kept.pop_all()
        self._thread = Thread(target=self._hear, name="later check", daemon=True)
        self._thread.start()

    def _hear(self) -> None:
        try:
            answer_of(self._child, LATER_PATIENCE_S)
        except RolloutError as error:
            self._error = not_continued(error, self._child.path) if isinstance(error, DataError) else error

    def poll(self) -> bool:
        """Return whether the task is under way; raise its error."""
        if self._error is not None and not self._is_ended:
            raise self._error
        return self._thread.is_alive()

    def end(self) -> None:
        """Kill the child, if it is still there."""
        self._is_ended = True
        self._child.process.kill()
        self._thread.join()
        self._kept.close()


def verify_later(tell: Tell, path: str) -> Iterator[int]:
    """Look at a file that nobody writes, and at its end; yield its number of steps, then check all of it.

    After the first yield HDF5 reads nothing any more: somebody may append to the file, which moves no full chunk.
    """
    with checked(path, tell) as file:
        for name, num_rows in file.counting_rows().items():  # Others are appended to the chunks with the last rows.
            chunks = file.stored.chunks(name)
            for number in chunks.numbers(slice(max(num_rows - 1, 0), num_rows)):
                chunks.compare(number, num_rows)
        yield file.num_steps
        os.nice(NICENESS)
        _check_chunks(file, {})
        if file.has_trajectories:
            _check_episodes(file)


def check_index(path: str) -> None:
    """Check what can be said of a whole file without reading its columns: also that HDF5 finds what is listed."""
    with checked(path, lambda doing: None) as file:
        for name in file.counting_rows():
            if problem := file.stored.chunks(name).disagreement():
                raise ContentError(problem)


def _check_chunks(file: CheckedFile, checks: Mapping[str, ValueCheck]) -> None:
    """Read every chunk that holds a row which counts, and compare the checksums, until a few are wrong.

    `checks` count the values of their columns.
    """
    named = list(islice(_problems(file, checks), NUM_NAMED + 1))
    if named:
        raise ContentError(_few(named))


def _few(problems: list[str]) -> str:
    return "; ".join(problems[:NUM_NAMED]) + ("; and more" if len(problems) > NUM_NAMED else "")


def _problems(file: CheckedFile, checks: Mapping[str, ValueCheck]) -> Iterator[str]:
    """Yield what is wrong with the chunks of the rows that count."""
    for name, num_rows in file.counting_rows().items():
        chunks, check = file.stored.chunks(name), checks.get(name.removeprefix("trajectories/"))
        chunks.num_chunks = chunks.nbytes = 0  # `checked` has read the tables.
        for place in chunks.numbers(slice(0, num_rows)):
            file.tell(f"{name} from row {chunks.place(place)[0]:,} on")
            if problem := chunks.problem(place, num_rows):
                yield problem
            elif check is not None:
                (row, env), num_envs = chunks.place(place), file.config.num_envs
                check.add(chunks.values(place)[: num_rows - row, : num_envs - env], row, env)


def _check_values(file: CheckedFile, checks: Mapping[str, ValueCheck]) -> None:
    """Check that the attributes that count wrong values say what follows from the values."""
    for name, check in checks.items():
        attributes = attributes_of(file.file["trajectories"][name])
        for kind, follows in check.counts.items():
            if not np.array_equal(np.asarray(got := attributes.get(kind)), follows):
                words = f"is {one_line(str(got))}, from its values follows {follows}"
                raise ContentError(f"trajectories/{name}: its attribute {kind} {words}")


def _check_episodes(file: CheckedFile) -> int:
    """Compare /episodes with what follows from rewards, ends, faults and seeds; return how many there are.

    Those under way at the end are written when a run ends: a killed run has none of them, or some.
    """
    resets = file.resets()
    table = make_table(file.config, file.root, file.faults(), resets)
    rows, cuts = file.committed_episodes(), np.zeros(0, RESET) if resets is None else resets[resets["cut"]]
    num_expected, problem = 0, ""
    for results in stored_results(file.stored, file.root, file.num_steps):
        file.tell(f"rewards and ends from step {results.start:,} on")
        table.add(results, 0, len(results.rewards))
        ended = table.take(file.num_steps)
        problem = problem or _difference(rows, ended, num_expected)
        num_expected, cuts = num_expected + len(ended), cuts[~_are_made(cuts, ended, file.config.num_envs)]
    file.tell("episodes")
    unfinished = table.unfinished(file.num_steps)
    problem = problem or _difference(rows, unfinished, num_expected)
    least = num_expected + len(unfinished) * file.is_sealed
    num_expected += len(unfinished)
    if not least <= len(rows) <= num_expected:
        raise ContentError(f"episodes has {len(rows):,} rows, from rewards and ends follow {num_expected:,}")
    if problem:
        raise ContentError(problem)
    if len(cuts):
        env, step = cuts[0]["env_index"], cuts[0]["step"]
        raise ContentError(
            f"resets says that the episode of env {env} was cut before step {step:,}; it is not truncated"
        )
    if agents := agents_in(file.root):
        _check_agents(file, agents, np.concatenate([rows[: num_expected - len(unfinished)], unfinished]))
    return len(rows)


def _check_agents(file: CheckedFile, agents: Sequence[str], episodes: np.ndarray) -> None:
    """Check that agents act in the episodes of their envs alone, and get rewards and ends where they act alone.

    So the rewards of an agent's episodes are those of its env's episode, which `return_AGENT` sums up.
    """
    num_envs = file.config.num_envs

    def read(name: str, start: int, stop: int) -> np.ndarray:
        return file.stored.chunks(f"trajectories/{name}").read(start, stop)

    def told(agent: str) -> Iterator[AgentSteps]:
        for block in agent_steps(read, agent, file.num_steps, num_envs):
            file.tell(f"the episodes of {agent} from step {block.start:,} on")
            if (stray := block.is_stray).any():
                row, env = first_of(stray)
                where = f"env {env}, step {block.start + row:,}"
                raise ContentError(f"{where}: its agent {agent} has a reward or an end, and alive/{agent} is false")
            yield block

    for agent in agents:
        rows = agent_episodes(told(agent), num_envs)
        if len(others := rows[~within(rows, episodes, file.num_steps)[1]]):
            where = f"env {others[0]['env_index']}, step {others[0]['start']:,}"
            raise ContentError(f"{where}: alive/{agent} is true, and no episode of the env is there")


def _are_made(cuts: np.ndarray, ended: np.ndarray, num_envs: int) -> np.ndarray:
    """Tell which episodes that a trainer has cut are truncated there."""
    truncated = ended[ended["truncated"]]
    ends = (truncated["start"] + truncated["length"]) * num_envs + truncated["env_index"]
    return np.isin(cuts["step"] * num_envs + cuts["env_index"], ends)


def _difference(rows: np.ndarray, expected: np.ndarray, first: int) -> str:
    """Say what differs between the rows of /episodes from `first` on, as far as there are any, and what follows."""
    rows = rows[first : first + len(expected)]
    for name in expected.dtype.names or ():
        got, follows = rows[name], expected[name][: len(rows)]
        differ = np.flatnonzero((got != follows) & ((got == got) | (follows == follows)))  # A return may be NaN.
        if len(differ):
            row, values = first + differ[0], (got[differ[0]], follows[differ[0]])
            return f"episodes, row {row:,}: {name} is {values[0]}, from rewards, ends and seeds follows {values[1]}"
    return ""


def end(tell: Tell, path: str) -> tuple[int, int, int]:
    """Read how many steps a file has, how many episodes ended in them, and how many of those before the last step."""
    with checked(path, tell) as checks:
        rows = checks.committed_episodes()
        rows = rows[rows["terminated"] | rows["truncated"]]
        num_before = np.count_nonzero(rows["start"] + rows["length"] < checks.num_steps)
        return checks.num_steps, len(rows), int(num_before)
