"""What envs promise about their random numbers."""

from enum import StrEnum


class Reproducibility(StrEnum):
    """On what the data of an env depend, besides its actions.  Each value promises more than those after it.

    With EPISODE and ENV they are the same on any number of ranks, and a run can be continued.
    """

    EPISODE = "episode"  # On the run's seed, the env's index and the number of the episode.
    ENV = "env"  # On the seed, the index, and all of the env's steps before.
    SLICE = "slice"  # On the other envs of the rank, too: they share a generator.

    @property
    def words(self) -> str:
        """Say it in a sentence's part."""
        return {
            "episode": "each episode has a seed of its own",
            "env": "each env has a stream of random numbers of its own",
            "slice": "the envs of a rank share a random generator",
        }[self]
