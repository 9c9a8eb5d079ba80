"""Findings, and the report that they are put into."""

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from threading import Timer

from mpi_rollout.errors import LaunchError, RolloutError, StorageError, as_flag
from mpi_rollout.process.console import fitted, show
from mpi_rollout.process.exits import leave_now
from mpi_rollout.text import first_line

OK, WARN, BAD = "OK", "WARN", "BAD"
INDENT = 20  # The width of the state and the name of a check.
FILES = ("folder", "disk", "SWMR")  # The checks of the file system: BAD ones have an exit code of their own.


@dataclass(frozen=True)
class Finding:
    """The result of one check.  WARN: a run will work, but less well than it could; BAD: it will fail or lose data."""

    check: str
    found: str
    state: str = OK
    advice: str = ""
    figures: Mapping[str, float] = field(default_factory=dict)  # The numbers in `found`, for programs.

    @property
    def lines(self) -> list[str]:
        """The lines that the doctor prints."""
        advice = [f"{'':{INDENT}}-> {self.advice}"] if self.advice else []
        return [f"{self.state:<5} {self.check:<13} {self.found}", *advice]


def warning_if(is_bad: bool, check: str, found: str, advice: str = "", **figures: float) -> Finding:
    """Return a finding that is a warning with this advice, or all right."""
    return Finding(check, found, WARN if is_bad else OK, advice if is_bad else "", figures)


def first_few(items: Iterable[object], most: int = 8) -> str:
    """Join the first few of many items by commas, and say how many there are."""
    items = list(items)
    return ", ".join(map(str, items[:most])) + (f", ... ({len(items)} in all)" if len(items) > most else "")


class Report:
    """All findings so far.  The root prints them, each at once, or as JSON in the end.

    On the other ranks it does nothing.
    """

    def __init__(self, timeout_s: float, as_json: bool = False, is_root: bool = True):
        self.timeout_s, self._as_json, self._is_root = timeout_s, as_json, is_root
        self.findings: list[Finding] = []

    def add(self, finding: Finding | None) -> None:
        if finding is not None and self._is_root:
            self.findings.append(finding)
            if not self._as_json:
                show(fitted(finding.lines, INDENT))

    def is_bad(self, check: str) -> bool:
        return any(finding.check == check and finding.state == BAD for finding in self.findings)

    @contextmanager
    def check(self, name: str, advice: str) -> Iterator[None]:
        """Report what a check raises; end the program if it takes longer than `timeout_s`.

        No other way ends a check that waits for MPI or a file system.
        """
        timer = Timer(self.timeout_s, self._give_up, (name, advice))
        timer.daemon = True
        if self._is_root:
            timer.start()
        try:
            yield
        except RolloutError as error:
            self.add(Finding(name, error.shown(as_flag), BAD, advice))
        except Exception as error:
            self.add(Finding(name, f"{type(error).__name__}: {first_line(error)}", BAD, advice))
        finally:
            timer.cancel()

    def _give_up(self, name: str, advice: str) -> None:
        self.add(Finding(name, f"has not come to an end within {self.timeout_s:g} s", BAD, advice))
        leave_now(self.end())

    def end(self) -> int:
        """Print the end; return 0 if nothing is BAD, 74 if only file systems are, else 78."""
        states, bad = [finding.state for finding in self.findings], {f.check for f in self.findings if f.state == BAD}
        code = 0 if not bad else StorageError.exit_code if bad <= {*FILES} else LaunchError.exit_code
        if self._is_root:
            report = {"findings": [asdict(finding) for finding in self.findings], "exit_code": code}
            counts = ", ".join(f"{states.count(state)} {state}" for state in (OK, WARN, BAD))
            show([json.dumps(report) if self._as_json else counts])
        return code
