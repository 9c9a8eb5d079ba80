"""What memory or disk cannot hold is refused with the figure before anything is made of it."""

import json
import re

import gymnasium
import numpy as np
import pytest
from jobs import Job

from mpi_rollout import connect
from mpi_rollout.errors import UsageError, as_flag
from mpi_rollout.process import host

NO_OVERRIDE = {"MPI_ROLLOUT_ANY_SIZE": ""}


@pytest.fixture(autouse=True)
def no_override(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(host.ANY_SIZE, raising=False)


def test_more_envs_than_memory_holds_are_refused_at_once(job: Job):
    result = job(None, "--env", "CartPole-v1", "--num-envs", "99999999999", **NO_OVERRIDE)
    assert (result.code, result.num_tracebacks) == (64, 0)
    [message] = result.messages
    assert message.startswith("--num-envs: 99,999,999,999 envs take at least 100,000.0 GB of memory on each rank")
    assert message.endswith(" free; use fewer envs, more hosts, or MPI_ROLLOUT_ANY_SIZE=1 to begin all the same")
    with pytest.raises(UsageError, match="num_envs: 99,999,999,999 envs take at least"):
        connect("CartPole-v1", 99_999_999_999)


class Large(gymnasium.Env):
    """An env that has 1 GB of its own, as far as this test's measure goes."""

    observation_space = gymnasium.spaces.Box(0, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)


def test_what_the_first_envs_take_tells_of_all_others(monkeypatch: pytest.MonkeyPatch):
    made, resident = [], iter((0, 64 * 10**6))
    monkeypatch.setattr(host, "resident_nbytes", lambda: next(resident))
    monkeypatch.setattr(host, "free_memory", lambda: 10**9)
    with pytest.raises(UsageError) as refused:
        for env in host.make_with_room([Large] * 5000):
            made.append(env)
    assert len(made) == host.FEW + 1
    assert refused.value.shown(as_flag).startswith(
        "--num-envs: an env takes 1.0 MB of memory here, the 5,000 of this rank 4.9 GB more, and this host has 1.0 GB"
    )


def test_a_run_that_the_disk_cannot_hold_ends_before_its_first_step_and_leaves_nothing(job: Job):
    more = ("--env", "CartPole-v1", "--num-envs", "64", "--num-steps", str(10**12), "--out", "run.h5", "--json")
    result = job(None, *more, **NO_OVERRIDE)
    assert result.code == 74 and "64 envs x 1,000,000,000,000 steps take about " in result.messages[-1]
    assert json.loads(result.out)["exit_code"] == 74
    assert list(job.folder.iterdir()) == []
    dry = job(None, *more[:-1], "--dry-run", **NO_OVERRIDE)
    told, told_dry = (
        re.sub(r"has [\d.,]+ GB free", "", one.messages[-1]) for one in (result, dry)
    )  # Others write too.
    assert dry.code == 74 and told_dry == told


def test_the_memory_of_a_container_is_its_limit(tmp_path):
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 9 kB\nMemAvailable:    4000 kB\n")
    assert host.free_memory(str(meminfo), tmp_path) == 4_096_000
    (tmp_path / "memory.max").write_text("1000000\n")
    (tmp_path / "memory.current").write_text("400000\n")
    assert host.free_memory(str(meminfo), tmp_path) == 600_000
    (tmp_path / "memory.stat").write_text("anon 1\nactive_file 100000\ninactive_file 200000\n")
    assert host.free_memory(str(meminfo), tmp_path) == 900_000  # Files that are cached are given up in time.
    (tmp_path / "memory.stat").write_text("active_file 100000\n")
    assert host.free_memory(str(meminfo), tmp_path) == 700_000
    (tmp_path / "memory.current").write_text("3000000\n")
    assert host.free_memory(str(meminfo), tmp_path) == 0
    (tmp_path / "memory.max").write_text("max\n")
    assert host.free_memory(str(meminfo), tmp_path) == 4_096_000


def test_buffers_that_memory_cannot_hold_are_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(host, "free_memory", lambda: 10**6)
    host.check_blocks(10**6)
    with pytest.raises(UsageError, match=r"rank 0 needs 1\.0 MB of memory .* free; use fewer envs, or MPI_ROLLOUT_"):
        host.check_blocks(10**6 + 1)


def test_memory_is_told_in_the_unit_that_fits():
    assert [host.format_bytes(nbytes) for nbytes in (10**5, 10**9 - 10**5, 10**9)] == ["0.1 MB", "999.9 MB", "1.0 GB"]


def test_no_envs_are_refused_that_memory_holds(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(host, "free_memory", lambda: 3 * host.LEAST_ENV_NBYTES)
    host.check_num_envs(6, 2)
    with pytest.raises(UsageError):
        host.check_num_envs(8, 2)
    monkeypatch.setenv(host.ANY_SIZE, "1")
    host.check_num_envs(8, 2)


def test_ranks_share_the_cores_of_their_host_unless_their_launcher_bound_them(monkeypatch: pytest.MonkeyPatch):
    launcher = 7
    cores = {0: range(4), launcher: range(4)}
    monkeypatch.setattr(host.os, "getppid", lambda: launcher)
    monkeypatch.setattr(host.os, "sched_getaffinity", lambda pid: {*cores[pid]})
    assert [host.share_of_cores(num_local) for num_local in (1, 3, 5)] == [4, 1, 1]
    cores[launcher] = range(8)
    assert host.share_of_cores(5) == 4
