"""How many steps ranks take between two exchanges.

In each exchange all ranks of a lane wait for the slowest one.  Over L steps, a rank's slow steps and its fast steps
balance, so ranks wait less.  L is bounded by what ranks and root have to hold, and by time: a run looks after its time
limit between two exchanges.  The data do not depend on L.
"""

from mpi_rollout.config import RolloutConfig
from mpi_rollout.core.spaces import leaves
from mpi_rollout.drive.driver import Driver, Lane
from mpi_rollout.exchange.orders import actions_nbytes
from mpi_rollout.options import AUTO

SLOT_NBYTES = 2**20  # The largest slot of a rank: within the core's cache it moves in half of the time.
ALL_SLOTS_NBYTES = 2**28  # The most that the slots of all ranks may have on the root.
# Images leave the cache: a few steps are enough for the ranks to wait less.
LARGE_SLOT_NBYTES, FEW_LARGE_STEPS = 2**25, 8
MOST_STEPS = 256  # More win nothing.
# Where slots have no data, a fragment needs memory for actions only.  Natively vectorized envs read each once, and are
# twice as fast over 16 steps as over one, since their states stay in the cache.
ACTIONS_NBYTES, FEW_STEPS = 2**22, 16
FRAGMENT_S = 0.4  # The longest that the steps of a fragment may take.
GROWTH = 4  # The growth from one fragment to the next: nobody knows yet how long a step takes.


def auto_length(row_nbytes: int, num_ranks: int, counts_only: bool = False) -> int:
    """Return the largest number of steps of a fragment.

    `row_nbytes` are those of one step in the slot of one rank, and of its actions.  With `counts_only` slots have no
    data; there are only actions, on the way to the ranks.
    """
    affordable = ALL_SLOTS_NBYTES // num_ranks // row_nbytes
    if counts_only:
        wanted = max(ACTIONS_NBYTES // row_nbytes, FEW_STEPS)
    else:
        wanted = max(SLOT_NBYTES // row_nbytes, min(LARGE_SLOT_NBYTES // row_nbytes, FEW_LARGE_STEPS))
    most = max(1, min(wanted, affordable, MOST_STEPS))
    return 2 ** (most.bit_length() - 1)  # The largest power of two that is not larger.


class FragmentLengths:
    """How many steps the next fragment of a lane has: at most `most`, and no more than take `seconds`."""

    def __init__(self, most: int = 1, seconds: float | None = FRAGMENT_S):
        self.most, self._seconds, self.longest = most, seconds, 1
        self._in_time: dict[Lane, int] = {}

    def next(self, lane: Lane, step: int) -> int:
        """Return the number of steps to take from `step` on.

        Fragments end where steps are multiples of the largest number: then few of them have another length.
        """
        if self.most == 1:
            return 1
        return min(self._in_time.get(lane, 1), self.most - step % self.most)

    def note(self, lane: Lane, num_steps: int) -> None:
        """Note from a lane's slots how long its steps take."""
        if self.most == 1 or not num_steps:
            return
        step_s, affordable = float(lane.exchange.step_s.max()) / num_steps, self.most
        if self._seconds is not None and step_s > 0:
            affordable = int(self._seconds / step_s)
        self._in_time[lane] = max(1, min(affordable, self._in_time.get(lane, 1) * GROWTH))
        self.longest = max(self.longest, num_steps)


def prepare_lengths(config: RolloutConfig, driver: Driver) -> FragmentLengths:
    """Choose how long the fragments of a run are, and have slots hold them; UsageError if they are too long."""
    exchange = max((lane.exchange for lane in driver.lanes), key=lambda exchange: exchange.layout.nbytes)
    row_nbytes, num_ranks = exchange.layout.nbytes, driver.exchanges.num_slots
    asked, seconds = config.fragment_length, FRAGMENT_S if config.fragment_length == AUTO else None
    if asked == AUTO:
        held_nbytes = row_nbytes + actions_nbytes(leaves(driver.action_space), exchange.partition.capacity)
        auto = auto_length(held_nbytes, num_ranks, counts_only=not exchange.layout.observations)
        length = min(auto, config.num_steps) if config.runs_ahead else 1
    else:
        length = min(int(asked), config.num_steps)
        driver.check_room(f"--fragment-length {asked}", length)
    if length > 1:
        driver.make_room(length)
    return FragmentLengths(length, seconds)
