"""Look whether a training script can begin: it is there, it is Python, and what it imports at its top is installed.

Takes the arguments of train.sbatch, which are those of `python -m mpi4py`, and executes nothing of them.  Ends with 78,
after one line that says what is wrong.
"""

import ast
import sys
from importlib.util import find_spec
from pathlib import Path

WRONG_LAUNCH = 78


def problem(arguments: list[str]) -> str:
    """Say what keeps the script from running; "" where nothing is seen."""
    kind, *rest = arguments
    if kind == "-m":
        sys.path.insert(0, "")
        return f"there is no module {rest[0]}" if rest and _is_missing(rest[0]) else ""
    if kind.startswith("-"):
        return ""
    try:
        tree = ast.parse(Path(kind).read_bytes(), kind)
    except OSError as error:
        return f"cannot read the training script {kind}: {error.strerror}"
    except SyntaxError as error:
        return f"{kind}, line {error.lineno}: {error.msg}"
    sys.path.insert(0, str(Path(kind).resolve().parent))
    missing = [name for name in _imported(tree) if _is_missing(name)]
    return f"{kind} imports {', '.join(missing)}, which {sys.executable} does not find" if missing else ""


def _imported(tree: ast.Module) -> list[str]:
    """The modules that are imported in any case; an import in a `try`, `if` or function may be meant to fail."""
    names = []
    for statement in tree.body:
        if isinstance(statement, ast.Import):
            names += [alias.name for alias in statement.names]
        elif isinstance(statement, ast.ImportFrom) and statement.level == 0:
            names.append(statement.module)
    return sorted({name.partition(".")[0] for name in names})


def _is_missing(name: str) -> bool:
    try:
        return find_spec(name.partition(".")[0]) is None
    except ValueError:  # A module that is already there, without a spec.
        return False


if __name__ == "__main__":
    words = problem(sys.argv[1:])
    if words:
        sys.stderr.write(f"train.sbatch: {words}\n")
        sys.exit(WRONG_LAUNCH)
