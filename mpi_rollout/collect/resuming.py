"""Going on with an interrupted run: its envs are brought back to where they were, by `replay`, or are lost."""

import json
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any

from mpi_rollout.collect.replay import READ_NBYTES, Replay, earliest
from mpi_rollout.core.columns import has_last_row
from mpi_rollout.core.layout import Block
from mpi_rollout.core.seeding import Reproducibility
from mpi_rollout.core.spaces import Tree, describe_leaves, tree_of
from mpi_rollout.drive.driver import Driver
from mpi_rollout.envs.replaying import Past
from mpi_rollout.errors import ActionError, DataError, UsageError
from mpi_rollout.process.console import say
from mpi_rollout.text import counted

if TYPE_CHECKING:
    from mpi_rollout.storage.untrusted import OpenFile  # Only the root imports it: imports are the job's start-up time.

WAY_OUT = "keep what there is with mpi_rollout recover"
MOST_SAID = 8  # Envs that are named one by one.


def check_promise(past: Past, promised: Reproducibility, source: str) -> None:
    """Refuse to go on with envs that promise something else than those of before: they give other data."""
    if promised != past.reproducibility:
        raise UsageError(
            f"{source} is of envs that promised {past.reproducibility} ({past.reproducibility.words}), these promise "
            f"{promised} ({promised.words}), which gives other data; continue it with the versions that began it, "
            "move it away, or use another --out"
        )


def check_infos(driver: Driver, file: "OpenFile", source: str) -> None:
    """Refuse to go on with infos of other types: with `--store-infos all` they follow from what envs say at first."""
    infos = driver.exchanges.contents.kept_infos
    now = describe_leaves(infos) if infos else None
    if (before := json.loads(file.attrs["spaces"]).get("info")) != now:
        raise UsageError(
            f"{source} has the infos {json.dumps(before):.200}, now the first infos of the envs give "
            f"{json.dumps(now):.200}; continue it with the versions that began it, move it away, or use another --out"
        )


def bring_back(driver: Driver, past: Past, file: "OpenFile", on_steps: Callable[[], None]) -> dict[int, int]:
    """Take steps again until the envs are where they were; return those that did not come back, and from which step on.

    Their random generators go on from there on all ranks.

    Parameters
    ----------
    on_steps
        Called before steps are taken; may raise to end the run.

    Raises
    ------
    DataError
        An env gave something else than before, and these envs come back by all of their steps only.
    UsageError
        That would take too long, see `replay`.
    """
    differences = Replay(driver, past, file["trajectories"]).run(WAY_OUT, on_steps)
    if differences and not past.is_by_episodes:
        index, first = earliest(differences)
        raise DataError(
            f"env {index} did not reproduce step {first.step:,}, and natively vectorized envs go on from "
            "where they were or not at all; is another version of them, or of what they use, installed?"
        )
    driver.call_ranks("end_replay", sorted(differences))
    driver.restarts = []  # Envs that failed meanwhile are among the lost.
    driver.call_ranks("seed_again", past.num_steps)
    return {index: differences[index].step for index in sorted(differences)}


def say_resumed(source: str, past: Past, num_steps: int, lost: Mapping[int, int], seconds: float) -> None:
    """Tell the user from where the run goes on, and which envs did not come back."""
    num_again = past.num_steps - past.first_step
    say(
        f"mpi_rollout: continuing {source} after {past.num_steps:,} of {counted(num_steps, 'step')}; took "
        f"{counted(num_again, 'step')} again in {seconds:.1f} s\n"
    )
    for index, step in list(lost.items())[:MOST_SAID]:
        say(
            f"mpi_rollout: env {index} did not reproduce step {step}: its running episode is ended as truncated "
            "and faulted\n"
        )


def load(block: Block, past: Past, lost: Collection[int], file: "OpenFile") -> None:
    """Fill a block with what there is of its rows; of the lost envs with the end of their episodes."""
    for name, array in block.named.items():
        if name in file["trajectories"]:  # An older version may not have had the column.
            rows = file["trajectories"][name][block.start : past.num_steps + has_last_row(name)]
            array[: len(rows)] = rows
    if past.num_steps > block.start:
        block.truncations[past.num_steps - 1 - block.start, sorted(lost)] = True


def earlier_observations(driver: Driver, past: Past, file: "OpenFile") -> Callable[[int], Tree]:
    """Return a function that gives the observations of an earlier step, of the last ones that memory keeps."""
    datasets = _observations(driver, file)
    row_nbytes = max(1, sum(dataset.nbytes // max(1, len(dataset)) for dataset in datasets))
    first = max(0, past.num_steps - max(1, READ_NBYTES // row_nbytes))
    arrays = [dataset[first : past.num_steps + 1] for dataset in datasets]

    def observations(step: int) -> Tree:
        if step < first:
            num_kept = past.num_steps - first
            raise ActionError(f"a plan of more than {num_kept} steps cannot be continued; plan fewer steps at a time")
        return tree_of(driver.observation_space, (array[step - first] for array in arrays))

    return observations


def show_observations(driver: Driver, past: Past, file: "OpenFile") -> None:
    """Show policies on the ranks the observations stored last: envs that are to begin an episode do not have them."""
    driver.call_ranks("show_observations", [dataset[past.num_steps] for dataset in _observations(driver, file)])


def _observations(driver: Driver, file: "OpenFile") -> list[Any]:
    return [file["trajectories"][name] for name in driver.block(1).named if name.split("/")[0] == "observations"]
