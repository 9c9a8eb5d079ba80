"""The example without Stable-Baselines3."""

import pytest
from jobs import CLONE, Job, Result

from mpi_rollout.text import pip_install

pytestmark = pytest.mark.full_start

WITHOUT = f"""
import runpy, sys

sys.modules["stable_baselines3"] = None  # As if it were not installed.
sys.argv[1:] = ["--num-envs", "2"]
runpy.run_path({str(CLONE / "examples/train_ppo.py")!r}, run_name="__main__")
"""


def test_the_example_says_in_one_line_what_to_install(job: Job):
    result: Result = job.script(None, WITHOUT)
    assert (result.code, result.num_tracebacks, len(result.err.splitlines())) == (78, 0, 1), result.err
    assert "needs Stable-Baselines3" in result.err and result.err.endswith(f"; {pip_install('[sb3]')}\n")
