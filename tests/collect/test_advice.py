"""The line of advice: what costs more than a fifth of the time, what helps, and that the file keeps it."""

import json
from dataclasses import replace

import pytest
from jobs import Job, Start

from mpi_rollout.collect.advice import LARGE_ROW_NBYTES
from mpi_rollout.collect.report import RunFigures
from mpi_rollout.core.policy_kinds import CALLED, MADE, RANDOM
from mpi_rollout.process.clock import PHASES
from mpi_rollout.storage.schema import ROOMS


def figures(seconds: float, num_envs: list[int], step_s: list[float], **more) -> RunFigures:
    """Of ranks on hosts of two cores each, of which nobody waits in a step for another one."""
    ranks = [
        {"rank": rank, "num_envs": number, "host": f"node{rank // 2}", "physical_cores": [0, 1]}
        for rank, number in enumerate(num_envs)
    ]
    phases = dict.fromkeys(PHASES, 0.0) | {name: more.pop(name, 0.0) for name in ("policy", "write")}
    sums = {"slowest_s": max(step_s), "mean_s": sum(step_s) / len(step_s)} | more
    return RunFigures("f", sum(num_envs), 10, 10, seconds, phases, ranks, step_s, **sums)


def in_groups(run: RunFigures) -> RunFigures:
    """The same where each rank is the first of two that make its envs together."""
    numbers = ({"rank": 2 * n, "env_ranks": [2 * n, 2 * n + 1], "envs": "none"} for n in range(len(run.ranks)))
    return replace(run, ranks=[rank | own for rank, own in zip(run.ranks, numbers, strict=True)])


def sharing(run: RunFigures, share: float | None, num_cores: int = 2) -> RunFigures:
    """The same where rank 1 had this share of a core, and all ranks of a host have so many cores."""
    cores = {"physical_cores": [*range(num_cores)], "host": "node0"}
    return replace(
        run, ranks=[rank | cores | {"core_share": share if n == 1 else 0.99} for n, rank in enumerate(run.ranks)]
    )


@pytest.mark.parametrize(
    ("taken", "best"),
    [
        (figures(10.0, [32, 32], [10.0, 10.0]), 32),
        (figures(10.0, [32, 32], [10.0, 5.0]), 21),  # Its core is half as fast: 21 / 3.2 and 43 / 6.4 seconds.
        (figures(10.0, [20, 20, 20], [10.0, 10.0, 10.0]), 20),
        (figures(10.0, [30, 30], [4.0, 8.0]), 40),  # It may take more.
        (figures(10.0, [32, 32], [8.0, 8.0], first_ready=True), 28),  # It is busy with other things for 2 seconds.
        (figures(10.0, [32, 32], [1.0, 4.0], first_ready=True), 0),  # 9 seconds: more than 64 envs take elsewhere.
    ],
)
def test_the_best_share_of_the_root_follows_from_measured_rates(taken: RunFigures, best: int):
    balanced = taken.balanced_root_envs()
    assert balanced is not None and abs(balanced[0] - best) <= 1
    lines = [line for line in taken.lines() if f"--root-envs {balanced[0]}" in line]
    assert bool(lines) == (balanced[1] >= 0.2)


def test_a_share_that_cannot_be_told_is_not_advised():
    for taken in (figures(1.0, [4], [1.0]), figures(1.0, [0, 4], [0.0, 1.0]), figures(1.0, [4, 4], [0.0, 0.0])):
        assert taken.balanced_root_envs() is None and "--root-envs" not in taken.advice


def test_groups_of_ranks_get_no_advice_that_their_number_refuses():
    """A number of ranks that does not fit them, or a root that is in no group."""
    crowded = sharing(figures(10.0, [2, 2], [2.0, 2.0], slowest_s=9.0), 0.3, num_cores=1)
    assert "mpirun -n" in crowded.advice and "mpirun -n" not in in_groups(crowded).advice
    unequal = figures(10.0, [32, 32], [1.0, 4.0], first_ready=True)
    assert [run.balanced_root_envs()[0] for run in (unequal, in_groups(unequal))] == [0, 1]


SHORT = figures(10.0, [32, 32], [2.0, 2.0])
UNEVEN = replace(figures(10.0, [8, 8, 8], [6.0, 6.0, 6.0], slowest_s=9.0), policy_kind=MADE)
POLICY = figures(10.0, [32, 32], [2.0, 2.0], policy=7.0)
ADVICE = {
    "crowded": (
        sharing(figures(10.0, [8] * 6, [4.0] * 6), 0.5),
        "there are 3 ranks for each core; waits for each other took 60% of the time: mpirun -n 2",
    ),
    "shared": (
        sharing(SHORT, 0.55),
        "other programs use the ranks' cores (one rank had 0.55 of its core), which cost 85% of the time: "
        "fewer ranks, --wait sleep, or sbatch --exclusive",
    ),
    "envs without a core": (sharing(figures(10.0, [32, 32], [9.0, 9.0]), 0.1), "which cost 51% of the time: "),
    "shared, asleep": (sharing(replace(SHORT, slept=True), 0.55), "fewer ranks, or sbatch --exclusive"),
    "root": (
        figures(10.0, [32, 32], [10.0, 5.0]),
        "rank 0 had 32 envs beside its own work, which cost about 33% of the time: --root-envs 21",
    ),
    "slow rank": (
        figures(10.0, [8, 8, 8], [2.0, 2.0, 9.0]),
        "envs of rank 2 (node1) took 4.5 times as long as others', which cost 47% of the time: "
        "spread slow envs over the ranks (a list of --env-kwargs), or leave out its host",
    ),
    "uneven": (
        UNEVEN,
        "in each step ranks waited for another slow one, which cost 30% of the time: --policy-on workers, or "
        "--batch-size 1",
    ),
    "uneven fragments": (replace(UNEVEN, policy_kind=RANDOM, fragment_length=8), "30% of the time: --batch-size 1"),
    "policy": (
        sharing(POLICY, 0.99, num_cores=4),
        "the policy on rank 0 took 70% of the time: --policy-on workers --policy-block 32 would save about 35%",
    ),
    "called policy": (
        replace(POLICY, policy_kind=CALLED),
        "--policy MODULE:make_policy --policy-block 32 would save about 35%",
    ),
    "policy alone": (
        figures(10.0, [4], [2.0], policy=7.0, policy_kind=CALLED),
        "mpirun -n 2 and --policy MODULE:make_policy --policy-block 2 would save about 35%",
    ),
    "disk": (
        figures(10.0, [32, 32], [5.0, 5.0], write=4.0),
        "writing the file took 40% of the time: --out on a faster disk (`doctor --out FOLDER` measures one), or "
        "--no-trajectories",
    ),
    "gzip": (figures(10.0, [4], [5.0], write=4.0, compression="gzip"), "--compression none or lz4, not gzip"),
    "short steps": (
        replace(SHORT, policy_kind=CALLED),
        "exchanges of short steps took 80% of the time: --num-envs 1024 would give up to 4.0 times the env steps/s, "
        "or fragments (--policy MODULE:make_policy); `tune` measures it",
    ),
    "short steps without fragments": (replace(SHORT, inference="workers"), ", or leave out --fragment-length 1; "),
    "short steps of many envs": (figures(10.0, [2048], [2.0]), "--num-envs 4096 would give up to 1.7 times"),
}  # fmt: skip


@pytest.mark.parametrize(("run", "words"), ADVICE.values(), ids=ADVICE.keys())
def test_what_costs_much_is_named_in_one_line_with_what_helps(run: RunFigures, words: str):
    assert words in run.advice and len(run.advice) < ROOMS["advice"]
    assert [line for line in run.lines() if line.startswith("advice: ")] == [f"advice: {run.advice}"]
    assert run.as_dict()["advice"] == run.advice
    assert any(line.startswith("slowest rank: ") for line in run.lines()) == (run.num_ranks > 1)


@pytest.mark.parametrize(
    "run",
    [
        figures(10.0, [32, 32], [8.5, 8.5]),  # Nothing costs a fifth.
        replace(SHORT, seconds=0.05),
        figures(0.2, [32, 32], [0.2, 0.1]),  # Ranks differ by chance in so short a run.
        figures(100.0, [32, 32], [80.0, 79.0], slowest_s=90.0),
        replace(SHORT, slot_bytes=2 * LARGE_ROW_NBYTES),  # More envs have more to send.
        figures(10.0, [4096], [2.0]),
        sharing(figures(10.0, [32, 32], [9.0, 9.0]), 0.85),
        figures(0.0, [1], [0.0]),
    ],
)
def test_where_nothing_costs_much_or_the_run_was_too_short_to_tell_there_is_no_advice(run: RunFigures):
    assert run.advice == "" and not any(line.startswith("advice: ") for line in run.lines())


def test_a_rank_that_is_slow_on_a_core_of_its_own_is_not_blamed_on_others():
    run = sharing(figures(10.0, [8, 8, 8], [2.0, 2.0, 9.0]), 0.5)
    assert run.advice.startswith("envs of rank 2")
    assert sharing(figures(10.0, [8, 8, 8], [2.0, 9.0, 2.0]), 0.5).advice.startswith("there are 1.5 ranks")


def test_ranks_that_have_their_cores_or_do_not_know_share_none():
    for share in (0.99, None):
        assert sharing(SHORT, share).advice.startswith("exchanges of short steps")
        assert sharing(figures(10.0, [8, 8, 8], [2.0, 9.0, 2.0]), share).advice.startswith("envs of rank 1")


ADVISED = """
from mpi_rollout.cli import main
from mpi_rollout.collect import report
report.advice_of = lambda run: "the weather took 40% of the time: another day"
assert main({run!r}) == 0
"""


@pytest.mark.any_mpi
@pytest.mark.mpi(1, 2, 3)
def test_the_file_keeps_the_advice_and_inspect_shows_the_same_line(job: Job, num_ranks: int):
    run = ["--env", "CartPole-v1", "--num-envs", "3", "--num-steps", "4", "--out", "run.h5", "--progress", "none"]
    ran = job.script(num_ranks, ADVISED.format(run=run))
    line = "the weather took 40% of the time: another day"
    assert ran.code == 0 and ran.out.splitlines()[-2] == f"advice: {line}", ran.err
    starts = (
        ("inspect", "run.h5"),
        ("inspect", "run.h5", "--json"),
        ("recover", "run.h5", "copy.h5"),
        ("inspect", "copy.h5"),
    )
    told, read, recovered, copied = job.series([Start(each) for each in starts])
    assert f"advice        {line}" in told.out.splitlines() and json.loads(read.out)["advice"] == line
    assert recovered.code == 0 and f"advice        {line}" in copied.out.splitlines(), recovered.err
