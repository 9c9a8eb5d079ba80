"""slurm/check_script.py: what a training script is refused for before any rank starts."""

import subprocess
import sys
from pathlib import Path

import pytest
from jobs import CLONE

pytestmark = pytest.mark.any_mpi

ALSO_GOOD = "import os, helper\nfrom . import relative\ntry:\n    import no_such\nexcept ImportError:\n    pass\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["good.py", "--lr", "1e-3"], ""),
        (["-c", "no Python"], ""),
        (["-m", "helper"], ""),
        (["-m", "no_such.thing"], "there is no module no_such.thing"),
        (["lost.py"], "cannot read the training script lost.py: No such file or directory"),
        (["."], "cannot read the training script .: Is a directory"),
        (["wrong.py"], "wrong.py, line 2: invalid syntax"),
        (["needy.py"], f"needy.py imports no_such, nor_such, which {sys.executable} does not find"),
    ],
)
def test_a_script_that_cannot_begin_is_refused_in_one_line(arguments: list[str], said: str, tmp_path: Path):
    files = {"good": ALSO_GOOD, "helper": "", "wrong": "import os\nenvs = = 1\n"}
    files["needy"] = "import os.path\nimport nor_such.inner, no_such\nraise SystemExit(3)\n"
    for name, text in files.items():
        (tmp_path / f"{name}.py").write_text(text)
    command = [sys.executable, str(CLONE / "slurm/check_script.py"), *arguments]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == ((78, f"train.sbatch: {said}\n") if said else (0, ""))
