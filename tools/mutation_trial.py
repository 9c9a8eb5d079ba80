"""Change the package in small wrong ways, one at a time, and see which of them no test notices.

    .venv/bin/python tools/mutation_trial.py --number 200 --seed 0
    .venv/bin/python tools/mutation_trial.py --folders core,storage --number 20

Each change is made in a copy of the tree: a turned comparison, a changed sign, a bound that is off by one, a dropped
call, `and` for `or`, a condition that is negated.  Then the tests of the same folder run (`tests/FOLDER`), until the
first fails.  A change that no test notices is printed with file and line: the program behaves the same with it, or a
test is missing.  The gate does not run this.
"""

import argparse
import ast
import copy
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

CLONE = Path(__file__).resolve().parents[1]
FOLDERS = "core,exchange,envs,collect,storage"
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


def statements(tree: ast.Module) -> Iterator[ast.stmt]:
    """The statements in functions, without those that only hold others."""
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef):
            inner = (node for node in ast.walk(function) if isinstance(node, ast.stmt))
            yield from (node for node in inner if not isinstance(node, ast.FunctionDef | ast.ClassDef))


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
    seen = set()
    for statement in statements(ast.parse((CLONE / path).read_text())):
        if id(statement) in seen or isinstance(statement, ast.Raise | ast.Assert):
            continue
        seen.add(id(statement))
        for node in own_nodes(statement):
            for what, wrong in wrong_nodes(node):
                code = _written(statement, node, wrong)
                yield Change(path, statement.lineno, statement.end_lineno or statement.lineno, what, code)


def _written(statement: ast.stmt, old: ast.AST, new: ast.AST) -> str:
    """A statement with another node in it, as indented lines."""
    copies: dict[int, ast.AST] = {}
    fresh = copy.deepcopy(statement, copies)
    changed = Replaced(copies[id(old)], new).visit(fresh)
    indent = " " * statement.col_offset
    return "".join(f"{indent}{line}\n" for line in ast.unparse(ast.fix_missing_locations(changed)).splitlines())


def is_noticed(change: Change, tree: Path, timeout_s: float) -> bool:
    """Run the tests of the change's folder, first those that start no job: does one fail, or hang?"""
    folder = f"tests/{change.path.parts[1]}"
    change.apply(tree)
    try:
        return not all(passes(tree, [*options, folder], timeout_s) for options in (["-m", "not mpi", "--quick"], []))
    finally:
        change.undo(tree)


def passes(tree: Path, options: list[str], timeout_s: float) -> bool:
    """Run pytest in the copy until a test fails; a run that takes too long has failed."""
    job = subprocess.Popen(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *options],
        cwd=tree, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    try:
        return job.wait(timeout_s) == 0
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
    parser.add_argument("--timeout-s", type=float, default=600.0, help="for the tests of one change (default: 600)")
    return parser.parse_args()


def main() -> int:
    """Return 1 if a change was not noticed."""
    options = parsed()
    package = [CLONE / "mpi_rollout" / folder for folder in options.folders.split(",")]
    paths = sorted(path.relative_to(CLONE) for folder in package for path in folder.rglob("*.py"))
    changes = [change for path in paths for change in changes_of(path)]
    chosen = random.Random(options.seed).sample(changes, min(options.number, len(changes)))[options.first :]
    unnoticed = []
    with tempfile.TemporaryDirectory(prefix="mutation-") as folder:
        tree = Path(folder) / "clone"
        shutil.copytree(CLONE, tree, symlinks=True, ignore=shutil.ignore_patterns(".git", ".venv*", "_build", "*.h5"))
        for number, change in enumerate(chosen, 1 + options.first):
            start = time.monotonic()
            noticed = is_noticed(change, tree, options.timeout_s)
            word = "noticed" if noticed else "NOT NOTICED"
            print(f"{number}: {word} in {time.monotonic() - start:.0f} s: {change}", flush=True)
            unnoticed += [] if noticed else [change]
    print(f"\n{len(chosen) - len(unnoticed)} of {len(chosen)} were noticed; unnoticed:")
    for change in unnoticed:
        print(f"  {change}")
    return 1 if unnoticed else 0


if __name__ == "__main__":
    sys.exit(main())
