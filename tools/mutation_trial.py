"""Change the package in small wrong ways, one at a time, and see which of them no test notices.

    .venv/bin/python tools/mutation_trial.py --number 200 --seed 0
    .venv/bin/python tools/mutation_trial.py --folders core,storage --number 20 --jobs-s 0

Each change is made in a copy of the tree: a turned comparison, a changed sign, a bound that is off by one, a dropped
call, `and` for `or`, a condition that is negated.  Left out are texts of messages, types and `__repr__`.  Then tests of
the same folder run, until the first fails or takes too long: first those that start no job and enter the changed
function, as a run of all of them before has recorded; then all others of the folder, which takes minutes.  The tests of
a folder are in `tests/FOLDER`; those of `tests/runs` count for `collect` too, since they test whole runs.

A change that no test notices is printed with file and line: the program behaves the same with it, or a test is missing.
The gate does not run this.
"""

import argparse
import ast
import copy
import os
import queue
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree

CLONE = Path(__file__).resolve().parents[1]
FOLDERS = "core,exchange,envs,collect,storage"
NUM_TREES = 2  # Copies, in each of which one change at a time is tried.
COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult, ast.Mod: ast.FloorDiv,
    ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip


@dataclass(frozen=True)
class Change:
    """One wrong change: the statement it is in, and the lines that take that statement's place."""

    path: Path
    function_line: int
    first_line: int
    last_line: int
    what: str
    code: str

    def __str__(self) -> str:
        return f"{self.path}:{self.first_line}: {self.what}"

    def apply(self, tree: Path) -> None:
        """Make it in a copy of the tree."""
        lines = (CLONE / self.path).read_text().splitlines(keepends=True)
        lines[self.first_line - 1 : self.last_line] = [self.code]
        (tree / self.path).write_text("".join(lines))

    def undo(self, tree: Path) -> None:
        shutil.copy2(CLONE / self.path, tree / self.path)


def wrong_nodes(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """What could stand in a node's place, and in what it is wrong."""
    wrong = copy.deepcopy(node)
    match wrong:
        case ast.Compare(ops=[operation]) if type(operation) in COMPARISONS:
            wrong.ops = [COMPARISONS[type(operation)]()]
            yield f"`{ast.unparse(node)}` becomes `{ast.unparse(wrong)}`", wrong
        case ast.BinOp(op=operation) if type(operation) in OPERATORS:
            wrong.op = OPERATORS[type(operation)]()
            yield f"`{ast.unparse(node)}` becomes `{ast.unparse(wrong)}`", wrong
        case ast.BoolOp():
            wrong.op = ast.And() if isinstance(wrong.op, ast.Or) else ast.Or()
            yield f"`{ast.unparse(node)}` becomes `{ast.unparse(wrong)}`", wrong
        case ast.UnaryOp(op=ast.Not() | ast.USub()):
            yield f"`{ast.unparse(node)}` becomes `{ast.unparse(wrong.operand)}`", wrong.operand
        case ast.Constant(value=int(value)) if type(value) is int:
            yield f"{value} becomes {value + 1}", ast.Constant(value + 1)
        case ast.Constant(value=bool(value)):
            yield f"{value} becomes {not value}", ast.Constant(not value)
        case ast.Expr(value=ast.Call()):
            yield f"`{ast.unparse(node)}` is dropped", ast.Pass()
        case ast.If(test=test) | ast.While(test=test) if not isinstance(test, ast.Compare):
            wrong.test = ast.UnaryOp(ast.Not(), test)
            yield f"`{ast.unparse(test)}` is negated", wrong


class Replaced(ast.NodeTransformer):
    """A statement with another node at one place."""

    def __init__(self, old: ast.AST, new: ast.AST):
        self.old, self.new = old, new

    def visit(self, node: ast.AST) -> ast.AST:
        return self.new if node is self.old else super().visit(node)


def statements(tree: ast.AST, function_line: int = 0) -> Iterator[tuple[int, ast.stmt]]:
    """The statements in functions, each with the first line of its innermost function."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef):
            if node.name != "__repr__":
                yield from statements(node, min(part.lineno for part in (node, *node.decorator_list)))
            continue
        if function_line and isinstance(node, ast.stmt) and not isinstance(node, ast.ClassDef):
            yield function_line, node
        yield from statements(node, function_line)


def own_nodes(statement: ast.stmt) -> Iterator[ast.AST]:
    """The nodes of a statement, without other statements in it, its type, and messages."""
    yield statement
    annotation = getattr(statement, "annotation", None)
    children = [child for child in ast.iter_child_nodes(statement) if child is not annotation]
    waiting = [child for child in children if not isinstance(child, ast.stmt)]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.JoinedStr | ast.excepthandler | ast.match_case):
            continue
        yield node
        waiting.extend(child for child in ast.iter_child_nodes(node) if not isinstance(child, ast.stmt))


def changes_of(path: Path) -> Iterator[Change]:
    """All wrong changes of a file that this program knows."""
    for function_line, statement in statements(ast.parse((CLONE / path).read_text())):
        if isinstance(statement, ast.Raise | ast.Assert):
            continue
        for node in own_nodes(statement):
            for what, wrong in wrong_nodes(node):
                code = _written(statement, node, wrong)
                last_line = statement.end_lineno or statement.lineno
                yield Change(path, function_line, statement.lineno, last_line, what, code)


def _written(statement: ast.stmt, old: ast.AST, new: ast.AST) -> str:
    """A statement with another node in it, as indented lines."""
    copies: dict[int, ast.AST] = {}
    fresh = copy.deepcopy(statement, copies)
    changed = Replaced(copies[id(old)], new).visit(fresh)
    indent = " " * statement.col_offset
    return "".join(f"{indent}{line}\n" for line in ast.unparse(ast.fix_missing_locations(changed)).splitlines())


@dataclass
class Record:
    """Which of the tests that start no job enter a function (`path:line`), and the seconds that each takes."""

    tests: dict[str, list[str]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    def tests_of(self, change: Change) -> list[str]:
        """The tests of the folder that enter the changed function, quickest first."""
        folders = tuple(f"{folder}/" for folder in test_folders([change.path.parts[1]]))
        entering = self.tests.get(f"{change.path}:{change.function_line}", [])
        return sorted((test for test in entering if test.startswith(folders)), key=lambda test: self.seconds[test])


def test_folders(folders: list[str]) -> list[str]:
    return [f"tests/{folder}" for folder in folders] + ["tests/runs"] * ("collect" in folders)


def recorded(tree: Path, folders: list[str]) -> Record:
    """Run all tests of the folders that start no job in a copy; those that fail without any change are left out."""
    entered, times, record = tree / "entered.tsv", tree / "times.xml", Record()
    options = ["-p", "entered_functions", "-m", "not mpi", "--quick", "--junitxml", str(times)]
    started(tree, [*options, *test_folders(folders)], MUTATION_TRIAL_RECORD=str(entered)).wait()
    for case in ElementTree.parse(times).iter("testcase"):
        test = f"{case.get('classname', '').replace('.', '/')}.py::{case.get('name')}"
        if all(case.find(reason) is None for reason in ("failure", "error", "skipped")):
            record.seconds[test] = float(case.get("time", "0"))
        elif case.find("skipped") is None:
            print(f"left out, since it fails unchanged: {test}", flush=True)
    for line in entered.read_text().splitlines():
        test, path, function_line = line.split("\t")
        if test in record.seconds:
            record.tests.setdefault(f"mpi_rollout/{path}:{function_line}", []).append(test)
    return record


def started(tree: Path, options: list[str], **extra: str) -> subprocess.Popen:
    environment = {**os.environ, "PYTHONPATH": f"{tree}:{CLONE / 'tools'}", **extra}
    return subprocess.Popen(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options],
        cwd=tree, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip


def is_noticed(change: Change, tree: Path, record: Record, jobs_s: float) -> bool:
    """Run the tests that could notice a change: does one fail, or hang?"""
    change.apply(tree)
    try:
        return is_noticed_without_jobs(change, tree, record) or (
            jobs_s > 0 and is_noticed_by_jobs(change, tree, jobs_s)
        )
    finally:
        change.undo(tree)


def is_noticed_without_jobs(change: Change, tree: Path, record: Record) -> bool:
    tests = record.tests_of(change)
    (tree / "tests.txt").write_text("\n".join(tests))
    seconds = 60 + 10 * sum(record.seconds[test] for test in tests)
    return bool(tests) and not passes(tree, ["--quick", "@tests.txt"], seconds)


def is_noticed_by_jobs(change: Change, tree: Path, seconds: float) -> bool:
    """Run all tests of the folder, those of the changed module first."""
    folders = test_folders([change.path.parts[1]])
    own = f"{folders[0]}/test_{change.path.stem}.py"
    return not passes(tree, [*[own] * (tree / own).exists(), *folders], seconds)


def passes(tree: Path, options: list[str], seconds: float) -> bool:
    """Run pytest in the copy until a test fails; a run that takes too long has failed."""
    job = started(tree, ["-x", *options])
    try:
        return job.wait(seconds) == 0
    except subprocess.TimeoutExpired:
        os.killpg(job.pid, signal.SIGKILL)
        job.wait()
        return False


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folders", default=FOLDERS, help=f"folders of the package (default: {FOLDERS})")
    parser.add_argument("--number", type=int, default=200, help="number of changes (default: 200)")
    parser.add_argument("--seed", type=int, default=0, help="chooses the changes (default: 0)")
    parser.add_argument("--first", type=int, default=0, help="leave out as many of the chosen ones (default: 0)")
    parser.add_argument(
        "--jobs-s", type=float, default=1200.0, help="limit for tests with jobs; 0: none (default: 1200)"
    )
    return parser.parse_args()


def chosen_changes(options: argparse.Namespace) -> list[Change]:
    package = [CLONE / "mpi_rollout" / folder for folder in options.folders.split(",")]
    paths = sorted(path.relative_to(CLONE) for folder in package for path in folder.rglob("*.py"))
    changes = [change for path in paths for change in changes_of(path)]
    return random.Random(options.seed).sample(changes, min(options.number, len(changes)))[options.first :]


def try_all(changes: list[Change], trees: list[Path], record: Record, jobs_s: float) -> list[Change]:
    """Try the changes, as many at a time as there are copies; return those that no test notices."""
    free: queue.Queue[Path] = queue.Queue()
    for tree in trees:
        free.put(tree)

    def is_missed(change: Change) -> bool:
        tree, start = free.get(), time.monotonic()
        try:
            noticed = is_noticed(change, tree, record, jobs_s)
        finally:
            free.put(tree)
        print(f"{'noticed' if noticed else 'NOT NOTICED'} in {time.monotonic() - start:.0f} s: {change}", flush=True)
        return not noticed

    with ThreadPoolExecutor(len(trees)) as pool:
        return [change for change, missed in zip(changes, pool.map(is_missed, changes), strict=True) if missed]


def main() -> int:
    """Return 1 if a change was not noticed."""
    options = parsed()
    chosen = chosen_changes(options)
    with tempfile.TemporaryDirectory(prefix="mutation-") as folder:
        trees = [Path(folder) / f"clone{number}" for number in range(NUM_TREES)]
        for tree in trees:
            shutil.copytree(CLONE, tree, symlinks=True, ignore=shutil.ignore_patterns(".git", ".venv*", "_build"))
        record = recorded(trees[0], options.folders.split(","))
        unnoticed = try_all(chosen, trees, record, options.jobs_s)
    print(f"\n{len(chosen) - len(unnoticed)} of {len(chosen)} were noticed; unnoticed:")
    for change in unnoticed:
        print(f"  {change}")
    return 1 if unnoticed else 0


if __name__ == "__main__":
    sys.exit(main())
