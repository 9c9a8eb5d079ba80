"""Reading a command line."""

import argparse
from collections.abc import Collection
from typing import Any

from mpi_rollout.errors import UsageError


class Parser(argparse.ArgumentParser):
    """Refuses wrong options as everything else is refused: one line, once for all ranks, exit code 64.

    Options must be written out: a new one would else change what a command in a script means.

    Attributes
    ----------
    commands
        The names of its commands.
    """

    commands: Collection[str] = ()

    def __init__(self, **options: Any):
        super().__init__(**{"allow_abbrev": False} | options)

    def add_subparsers(self, **options: Any) -> Any:
        added = super().add_subparsers(**options)
        self.commands = added.choices  # A view: those that are added later are in it.
        return added

    def error(self, message: str) -> None:
        raise UsageError(f"{message}; see {self.prog} --help")
