"""What is told of ranks that a run goes on without."""

from types import SimpleNamespace

import pytest

from mpi_rollout.collect.monitor import LostRank, LostRanks
from mpi_rollout.config import RolloutConfig
from mpi_rollout.core.clock import PHASES
from mpi_rollout.core.partition import Division
from mpi_rollout.errors import RankLost

HOSTS = ["one", "one", "two"]


class Run:
    """Three ranks with two envs each, of which rank 0 drives the run, at step 1000."""

    def __init__(self, num_stepping: int = 1):
        self.said: list[str] = []
        self.faults: list[tuple[int, int, str]] = []
        self.answers: list[object] = []
        exchanges = SimpleNamespace(num_stepping=num_stepping, division=Division(6, 3))
        driver = SimpleNamespace(exchanges=exchanges, call_ranks=self.call_ranks)
        collector = SimpleNamespace(num_steps=1000, lose=lambda rank: range(2 * rank, 2 * rank + 2))
        file = SimpleNamespace(add_fault=lambda *fault: self.faults.append(fault))
        self.state = SimpleNamespace(collector=collector, file=file)
        config = RolloutConfig(env="CartPole-v1", num_envs=6)
        self.lost_ranks = LostRanks(config, driver, HOSTS, self.said.append)

    def call_ranks(self, method: str) -> object:
        assert method == "report"
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.mark.parametrize(("num_envs", "envs"), [(1, "env 4"), (3, "envs 4 to 6")])
def test_a_lost_rank_is_named_with_its_host_envs_and_step(num_envs: int, envs: str):
    assert str(LostRank(2, "two", 4, num_envs, 12345)) == f"rank 2 (two), {envs}, at step 12,345"


def test_each_env_of_a_lost_rank_gets_a_fault_and_the_user_is_told_what_is_left():
    run = Run()
    run.lost_ranks.note([2], run.state)
    run.lost_ranks.note([1], run.state)
    assert [loss.rank for loss in run.lost_ranks.all] == [2, 1]
    assert run.said == [
        "mpi_rollout: lost rank 2 (two), envs 4 to 5, at step 1,000; going on with 4 of 6 envs\n",
        "mpi_rollout: lost rank 1 (one), envs 2 to 3, at step 1,000; going on with 2 of 6 envs\n",
    ]
    second, first = [(env, 1000, "lost rank 1 (one)") for env in (2, 3)], [(4, 1000, "lost rank 2 (two)")]
    assert run.faults == [*first, (5, 1000, "lost rank 2 (two)"), *second]


def test_a_run_without_a_rank_that_steps_envs_ends():
    run = Run(num_stepping=0)
    with pytest.raises(RankLost, match=r"^lost rank 2 \(two\), envs 4 to 5, at step 1,000; no rank is left that steps"):
        run.lost_ranks.note([1, 2], run.state)
    assert len(run.lost_ranks.all) == 2 and run.said == []


def test_of_a_rank_that_is_gone_the_report_says_what_is_known():
    run = Run()
    reports = [{"rank": rank, "host": HOSTS[rank], "num_envs": 2, "seconds": {"step": 1.0}} for rank in (0, 2)]
    run.answers = [RankLost("lost rank 1"), reports]
    missing = {"rank": 1, "host": "one", "num_envs": 2, "seconds": dict.fromkeys(PHASES, 0.0), "fault": None}
    assert run.lost_ranks.reports() == [reports[0], missing, reports[1]]
    assert run.said == ["mpi_rollout: lost rank 1\n"]
