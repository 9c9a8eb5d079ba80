"""The example without Stable-Baselines3."""

from conftest import Job, Result

WITHOUT = """
import sys

sys.modules["stable_baselines3"] = None  # As if it were not installed.
sys.argv[1:] = ["--num-envs", "2"]
from mpi_rollout.examples.train_ppo import main

sys.exit(main())
"""


def test_the_example_says_in_one_line_what_to_install(job: Job):
    result: Result = job.script(None, WITHOUT)
    assert (result.code, result.num_tracebacks, len(result.err.splitlines())) == (78, 0, 1), result.err
    assert "needs Stable-Baselines3" in result.err and result.err.endswith("; pip install 'mpi_rollout[sb3]'\n")
