"""Whether a file is what it says: every chunk of it is read, every statement that follows from others is checked."""

from collections.abc import Iterator
from itertools import islice

import numpy as np

from mpi_rollout.errors import ContentError
from mpi_rollout.storage.checked_file import CheckedFile, checked
from mpi_rollout.storage.episodes import make_table, stored_results
from mpi_rollout.storage.schema import EPISODE, RESET, is_recording
from mpi_rollout.storage.untrusted import Tell, attributes_of, steadily, text
from mpi_rollout.storage.values import ValueChecks

NUM_NAMED = 3  # Damaged chunks that a message names.


def verify(tell: Tell, path: str) -> dict[str, object]:
    """Check all of a file, complete or not; return what there is, as JSON can hold it.

    DataError if something is wrong; the message says what and where.
    """

    def everything() -> dict[str, object]:
        with checked(path, tell) as checks:
            return Verification(checks).everything()

    return steadily(path, everything)


def check_chunks(path: str) -> None:
    """Check what a commit cannot have spoiled by itself: attributes, lengths, tables, every chunk's checksum."""
    with checked(path, lambda doing: None) as checks:
        Verification(checks).chunks()


class Verification:
    """The checks of a file that read its columns.  All raise DataError."""

    def __init__(self, file: CheckedFile):
        self._file, self.num_chunks, self.nbytes = file, 0, 0
        self._values: ValueChecks | None = None

    def everything(self) -> dict[str, object]:
        """Make all checks; return what there is, as JSON can hold it."""
        self.chunks(counts_values=self._file.has_trajectories)
        self.values()
        num_episodes = self.episodes() if self._file.has_trajectories else 0
        return {
            "file": self._file.path,
            "complete": self._file.is_complete,
            "recovered": self._file.is_sealed and not self._file.is_complete,
            "limits": text(self._file.root, "limits") if is_recording(self._file.root) else "",
            "has_checksums": self._file.stored.has_list,
            "num_steps": self._file.num_steps,
            "episodes": num_episodes,
            "chunks": self.num_chunks,
            "nbytes": self.nbytes,
            "wrong_values": [] if self._values is None else self._values.wrong,
        }

    def chunks(self, counts_values: bool = False) -> None:
        """Read every chunk that holds a row which counts, and compare the checksums, until a few are wrong."""
        if counts_values:
            self._values = ValueChecks(self._file.root)
        problems = (
            problem for name, rows in self._file.counting_rows().items() for problem in self._problems_of(name, rows)
        )
        named = list(islice(problems, NUM_NAMED + 1))
        if named:
            raise ContentError("; ".join(named[:NUM_NAMED]) + ("; and more" if len(named) > NUM_NAMED else ""))

    def _problems_of(self, name: str, num_rows: int) -> Iterator[str]:
        """Yield what is wrong with the chunks of a dataset's first rows."""
        chunks = self._file.stored.chunks(name)
        chunks.num_chunks = chunks.nbytes = 0  # `tables` may have read them.
        check = self._values.of.get(name.removeprefix("trajectories/")) if self._values is not None else None
        for place in chunks.numbers(slice(0, num_rows)):
            self._file.tell(f"{name} from row {chunks.place(place)[0]:,} on")
            if problem := chunks.problem(place, num_rows):
                yield problem
            elif check is not None:
                (row, env), num_envs = chunks.place(place), self._file.config.num_envs
                check.add(chunks.values(place)[: num_rows - row, : num_envs - env], row, env)
        self.num_chunks, self.nbytes = self.num_chunks + chunks.num_chunks, self.nbytes + chunks.nbytes

    def values(self) -> None:
        """Check that the attributes that count wrong values say what follows from the values."""
        if self._values is None or not self._file.is_sealed:
            return
        for name, check in self._values.of.items():
            attributes = attributes_of(self._file.file["trajectories"][name])
            for kind, follows in check.counts.items():
                got = attributes.get(kind)
                if not np.array_equal(np.asarray(got), follows):
                    raise ContentError(
                        f"trajectories/{name}: its attribute {kind} is {got}, from its values follows {follows}"
                    )

    def episodes(self) -> int:
        """Compare /episodes with what follows from rewards, ends, faults and seeds; return how many there are.

        Those under way at the end are written when a run ends: a killed run has none of them, or some.
        """
        resets = self._file.resets()
        table = make_table(self._file.config, self._file.root, self._file.faults(), resets)
        rows, cuts = self._file.episode_rows(), np.zeros(0, RESET) if resets is None else resets[resets["cut"]]
        num_expected, problem = 0, ""
        for results in stored_results(self._file.stored, self._file.num_steps):
            self._file.tell(f"rewards and ends from step {results.start:,} on")
            table.add(results, 0, len(results.rewards))
            ended = table.take(self._file.num_steps)
            problem = problem or _difference(rows, ended, num_expected)
            num_expected, cuts = num_expected + len(ended), cuts[~self._are_made(cuts, ended)]
        self._file.tell("episodes")
        unfinished = table.unfinished(self._file.num_steps)
        problem = problem or _difference(rows, unfinished, num_expected)
        least = num_expected + len(unfinished) * self._file.is_sealed
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
        return len(rows)

    def _are_made(self, cuts: np.ndarray, ended: np.ndarray) -> np.ndarray:
        """Tell which episodes that a trainer has cut are truncated there."""
        truncated, num_envs = ended[ended["truncated"]], self._file.config.num_envs
        ends = (truncated["start"] + truncated["length"]) * num_envs + truncated["env_index"]
        return np.isin(cuts["step"] * num_envs + cuts["env_index"], ends)


def _difference(rows: np.ndarray, expected: np.ndarray, first: int) -> str:
    """Say what differs between the rows of /episodes from `first` on, as far as there are any, and what follows."""
    rows = rows[first : first + len(expected)]
    for name in EPISODE.names or ():
        got, follows = rows[name], expected[name][: len(rows)]
        differ = np.flatnonzero((got != follows) & ((got == got) | (follows == follows)))  # A return may be NaN.
        if len(differ):
            row, values = first + differ[0], (got[differ[0]], follows[differ[0]])
            return f"episodes, row {row:,}: {name} is {values[0]}, from rewards, ends and seeds follows {values[1]}"
    return ""
