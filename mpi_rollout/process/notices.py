"""Notices about envs: what is so in the envs of many ranks is said once, by rank 0.

A rank holds its notices until rank 0 asks all ranks for theirs: when the envs have begun and when a run ends, and of a
connection whenever a slot is marked with news.  After that, rank 0 says its own at once, and so does a process that is
no rank of a job.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias

from mpi_rollout.errors import Option, as_flag, spelled
from mpi_rollout.process.console import say
from mpi_rollout.text import counted

Text: TypeAlias = tuple[str | Option, ...]


class Notices:
    """The notices of this process: of each, the text and the first envs that it is about.

    `has_news` tells that one is held of which no slot has been marked.
    """

    def __init__(self) -> None:
        self.held: dict[Text, str] = {}
        self.has_news = False
        self._is_holding = False
        self._said: set[Text] = set()
        self._spell: Callable[[Option], str] = as_flag

    def hold(self) -> None:
        """Say nothing until `hear` is called."""
        self._is_holding = True

    def note(self, envs: str, *text: str | Option) -> None:
        """Note what is to be said of some envs; the same text of others is said once."""
        is_new = text not in self.held
        self.held.setdefault(text, envs)
        if not self._is_holding:
            self._say(text, envs)
        elif is_new:
            self.has_news = True

    def hear(self, of_ranks: Iterable[Mapping[Text, str]], spell: Callable[[Option], str]) -> None:
        """Say what these ranks hold and nobody has said; rank 0 calls this."""
        self._is_holding, self._spell = False, spell
        envs_of: dict[Text, list[str]] = {}
        for held in of_ranks:
            for text, envs in held.items():
                envs_of.setdefault(text, []).append(envs)
        for text, (first, *others) in envs_of.items():
            self._say(text, first, len(others))

    def _say(self, text: Text, envs: str, num_others: int = 0) -> None:
        if text in self._said:
            return
        self._said.add(text)
        others = f"; the same on {counted(num_others, 'other rank')}" if num_others else ""
        say(f"mpi_rollout: {spelled((f'{envs}: ', *text), self._spell)}{others}\n")


NOTICES = Notices()  # Envs have no other way to reach who serves them.
