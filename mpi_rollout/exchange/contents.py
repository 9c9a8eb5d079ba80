"""What orders and slots carry, as all ranks agree on it."""

from dataclasses import dataclass

from mpi_rollout.core.layout import SlotLayout
from mpi_rollout.core.spaces import Leaf, Space, leaves


@dataclass(frozen=True)
class Contents:
    """What orders and slots carry: the spaces of a single env, and what slots have besides results and observations.

    With `counts_only`, slots do not have those either: nobody reads what the envs give.  `extras` are what a policy
    gives besides actions; where slots have actions, they have these too.  With `keeps_infos` the infos are stored.
    """

    observation_space: Space
    action_space: Space
    has_final_observations: bool = False
    infos: tuple[Leaf, ...] = ()
    has_actions: bool = False
    counts_only: bool = False
    extras: tuple[Leaf, ...] = ()
    keeps_infos: bool = False

    @property
    def kept_infos(self) -> tuple[Leaf, ...]:
        """The infos that blocks have, too."""
        return self.infos if self.keeps_infos else ()

    def slot_layout(self, capacity: int) -> SlotLayout:
        """Return how a slot for so many envs is laid out."""
        return SlotLayout(
            self.observation_space,
            capacity,
            self.has_final_observations,
            self.infos,
            leaves(self.action_space) if self.has_actions else (),
            self.counts_only,
            self.extras if self.has_actions else (),
        )
