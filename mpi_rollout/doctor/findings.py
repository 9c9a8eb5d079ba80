"""What the doctor says: one finding per line, and the exit code of all of them."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from mpi_rollout.errors import LaunchError, StorageError

OK, WARN, BAD = "OK", "WARN", "BAD"
LAUNCH, FILES = "launch", "files"


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    Parameters
    ----------
    check
        What was looked at, in a word.
    state
        OK; WARN, a run will work but less well than it could; BAD, a run will fail or lose data.
    advice
        What to do, in one sentence.
    area
        LAUNCH or FILES: which exit code a BAD one gives.
    figures
        Numbers of it, for programs.
    """

    check: str
    found: str
    state: str = OK
    advice: str = ""
    area: str = LAUNCH
    figures: dict[str, float] = field(default_factory=dict)

    @property
    def lines(self) -> list[str]:
        """As they are printed."""
        advice = [f"{'':20}-> {self.advice}"] if self.advice else []
        return [f"{self.state:<5} {self.check:<13} {self.found}", *advice]

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def exit_code(findings: Iterable[Finding]) -> int:
    """0 if nothing is BAD, 74 if only file systems are, else 78."""
    areas = {each.area for each in findings if each.state == BAD}
    if not areas:
        return 0
    return StorageError.exit_code if areas == {FILES} else LaunchError.exit_code


def summary(findings: Iterable[Finding]) -> str:
    """How many there are of each state."""
    states = [each.state for each in findings]
    return ", ".join(f"{states.count(state)} {state}" for state in (OK, WARN, BAD))


def shortened(items: Iterable[Any], most: int = 8) -> str:
    """The first of many, comma between."""
    items = list(items)
    return ", ".join(map(str, items[:most])) + (f", ... ({len(items)} in all)" if len(items) > most else "")
