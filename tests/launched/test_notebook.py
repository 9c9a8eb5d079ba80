"""`launch` in a notebook: the example learns, and a cell that was stopped leaves the envs usable."""

from pathlib import Path

import pytest
from jobs import CLONE, are_gone, job_environment

nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")

STOPPED = """
import os
from launched_envs import Interrupting
envs.close()
kwargs = [{"trainer": os.getpid(), "times": times, "go": "go"} for times in (1, 0)]
envs = mpi_rollout.launch(Interrupting, 2, num_ranks=1, env_kwargs=kwargs)
envs.reset(seed=1)
while True:
    envs.step(np.full(2, 3))
"""
GOING_ON = """
envs.step(np.full(2, 3))
print(envs.get_attr("num_steps"))
"""
FAILING = """
import pathlib
def make():
    print("made on a rank", flush=True)
    pathlib.Path("missing").read_text()
mpi_rollout.launch(make, 2, num_ranks=1)
"""


@pytest.mark.any_mpi
@pytest.mark.mpi
def test_the_example_learns_and_cells_that_end_early_leave_the_notebook_usable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for name, value in job_environment().items():
        monkeypatch.setenv(name, value)
    notebook = nbformat.read(CLONE / "examples/train.ipynb", as_version=4)
    more = [nbformat.v4.new_code_cell(text) for text in (STOPPED, GOING_ON, FAILING)]
    for cell in more[::2]:
        cell.metadata["tags"] = ["raises-exception"]
    notebook.cells += more
    nbclient.NotebookClient(notebook, timeout=240, resources={"metadata": {"path": str(tmp_path)}}).execute()
    printed = ["".join(output.get("text", "") for output in cell.get("outputs", ())) for cell in notebook.cells]
    steps = [int(line.split()[2]) for line in printed[2].splitlines()]
    assert steps[-1] > 2 * steps[0], printed[2]
    stopped, going_on, failing = (cell.outputs for cell in more)
    assert stopped[-1].ename == "KeyboardInterrupt" and going_on[-1].text == "(3, 3)\n"
    assert failing[-1].ename == "EnvError" and "No such file or directory: 'missing'" in failing[-1].evalue
    assert "made on a rank" in printed[-1]
    assert are_gone(tmp_path)
