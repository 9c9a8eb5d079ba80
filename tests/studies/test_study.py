"""What a study is made of, and what its samples show."""

from dataclasses import fields, replace

import numpy as np
import pytest
from fake_launcher import BARE_PER_S, outcome
from made_up_studies import RUN, made_up, make_study, with_outcome

from mpi_rollout.cli import make_parser
from mpi_rollout.config import RolloutConfig
from mpi_rollout.errors import UsageError
from mpi_rollout.studies import report
from mpi_rollout.studies.commands import lengths_list
from mpi_rollout.studies.jobs import arguments_of
from mpi_rollout.studies.report import Analysis, analyses
from mpi_rollout.studies.study import Point, Study, sample_of, scaling_points
from mpi_rollout.studies.study_file import StudyFile, machine_facts

RANKS = (1, 2, 4, 8, 16, 32)


def test_each_repeat_has_all_numbers_of_ranks_in_an_order_of_its_own_which_the_seed_decides():
    study = make_study(num_ranks=RANKS, repeats=6)
    order = study.order()
    blocks = [[point.num_ranks for point in order if point.repeat == repeat] for repeat in range(6)]
    assert [point.repeat for point in order] == sorted(6 * list(range(6)))
    assert all(sorted(block) == list(RANKS) for block in blocks) and len(set(map(tuple, blocks))) > 1
    assert order == make_study(num_ranks=RANKS, repeats=6).order()
    assert order != replace(study, jobs=replace(study.jobs, order_seed=1)).order()


@pytest.mark.parametrize(("kind", "num_envs"), [("strong", [512, 512]), ("weak", [64, 256])])
def test_strong_keeps_the_envs_in_all_and_weak_those_of_a_rank(kind, num_envs):
    study = make_study(kind, (1, 4))
    assert [study.config(point, "run.h5").num_envs for point in study.points] == num_envs


def test_ranks_that_make_an_env_together_stand_for_one():
    """Twice the groups have twice the envs of a group, and twice the rate."""
    study = make_study("weak", (2, 4), ranks_per_env=2)
    assert [study.num_envs(ranks) for ranks in (2, 4)] == [64, 128]
    assert study.base_case == "bare env.step loop over 64 envs, 2 ranks"
    samples = []
    for point, groups in zip(study.points, (1, 2), strict=True):
        found = outcome(groups, 64 * groups, 1000)
        for rank in found["ranks"]:
            rank["env_ranks"] = [0, 1]
        samples.append(sample_of(point, "", 3, found))
    one, two = Analysis(StudyFile(study, {}, {}, tuple(samples))).points
    assert one.efficiency.median == pytest.approx(1, rel=0.02) and two.speed_up.median == pytest.approx(2, rel=0.04)
    assert two.efficiency.median == two.speed_up.median / 2 and (one.ideal, two.ideal) == (1, 2)
    assert (one.oversubscribed, two.oversubscribed) == (False, True)


OTHERS = {
    "env": None, "env_factory": "envs:Counting", "env_kwargs": {"a b": [1, "-'\""]}, "policy": "policies:act",
    "batch_size": 1, "vectorization_mode": "vector_entry_point", "num_steps": 7, "seed": 3, "trajectories": False,
}  # fmt: skip


@pytest.mark.parametrize("run", [{}, OTHERS, {"env_kwargs": {"x": None}, "num_groups": 2, "trajectories": True}])
def test_the_command_of_a_job_says_its_whole_configuration(run):
    config = make_study(**run).config(Point(2), "a folder/run.h5")
    options = make_parser().parse_args(["run", *arguments_of(config)])
    assert RolloutConfig(**{each.name: getattr(options, each.name) for each in fields(RolloutConfig)}) == config
    assert (config.measure_limit, config.json, config.expect_ranks) == (True, True, 2)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"size": 0}, "--num-envs must be at least 1, got 0"),
        ({"size": 1}, "--num-envs must be at least the largest of --ranks, got 1 env for 2 ranks"),
        ({"run": RUN | {"ranks_per_env": 2}}, "--ranks must be multiples of --ranks-per-env 2, got 1"),
    ],
)
def test_what_no_study_can_be_is_refused(change, words):
    with pytest.raises(UsageError, match=words):
        replace(make_study(), **change)


def differences(before: Study, now: Study) -> list[str]:
    return StudyFile(before, {}, {}).differences(StudyFile(now, {}, {}))


def test_what_differs_between_studies_is_said_in_the_words_of_the_command_line():
    study = make_study()
    assert differences(make_study(), study) == []
    run = study.run | {"trajectories": True, "seed": 5}
    assert differences(replace(study, points=scaling_points((1, 2, 4), ("1",)), size=64, run=run), study) == [
        "--num-envs was 64, is 512", "--ranks was 1,2,4, is 1,2", "--seed was 5, is 0",
        "--no-trajectories was not given, is given",
    ]  # fmt: skip


def test_a_study_that_was_stored_before_there_was_an_option_had_its_default():
    stored = make_study()
    assert differences(stored, make_study(actions="check", env_checks="none")) == []
    assert differences(stored, make_study(actions="clip")) == ["--actions was check, is clip"]


# Samples.


@pytest.mark.parametrize(
    ("hosts", "cores", "num_cores", "oversubscribed"),
    [
        ("aa", [[0, 1], [0, 1]], 2, False),
        ("aaa", [[0, 1], [0, 1], [0, 1]], 2, True),
        ("aa", [[0], [1]], 2, False),
        ("aa", [[0], [0]], 2, True),
        ("aa", [[0, 1, 2, 3]] * 2, 1, True),  # A container's quota, which no affinity shows.
        ("aabb", [[0, 1]] * 4, 2, False),
        ("aa", [[0], [64]], 64, True),  # Two hardware threads of one core.
    ],
)
def test_a_sample_knows_of_more_ranks_than_cores(hosts, cores, num_cores, oversubscribed):
    found = outcome(len(cores), 8 * len(cores), 10)
    for rank, host, own in zip(found["ranks"], hosts, cores, strict=True):
        rank["host"], rank["cores"], rank["physical_cores"] = host, own, [core % 64 for core in own]
    job = sample_of(Point(2), "", num_cores, found)
    assert (job.hosts, job.oversubscribed) == (", ".join(sorted({*hosts})), oversubscribed)


def test_out_of_lockstep_the_phases_are_the_roots():
    losses = {"envs": 0.6, "exchange": 0.22, "policy": 0.1, "write": 0.08}
    job = sample_of(Point(2), "", 64, outcome(2, 8, 10, in_lockstep=False, losses=losses))
    parts = np.array([job.env_s, job.idle_s, job.exchange_s, job.policy_s, job.write_s]) / job.seconds
    assert parts == pytest.approx([0.6, 0, 0.22, 0.1, 0.08])


# Analysis.


def test_the_base_case_is_the_bare_loop_on_one_rank():
    analysis = Analysis(made_up(make_study()))
    assert analysis.base.median == pytest.approx(BARE_PER_S)
    one = analysis.points[0]
    assert one.speed_up.median == pytest.approx(outcome(1, 512, 1000)["limit"][0][0] / BARE_PER_S)
    assert one.speed_up.median < 1  # Of the base case, not of this program on one rank.


@pytest.mark.parametrize("kind", ["strong", "weak"])
def test_losses_are_exactly_what_the_efficiency_lacks(kind):
    study = make_study(kind, RANKS)
    for point in Analysis(made_up(study)).points:
        assert sum(point.losses.values()) == pytest.approx(1 - point.efficiency.median)
        assert sum(point.shares.values()) == pytest.approx(1)
        assert point.losses["env"] == pytest.approx(0, abs=1e-9)


def test_envs_that_slow_down_together_are_a_loss_of_their_own():
    two = Analysis(with_outcome(made_up(make_study()), slower=1.25)).points[1]
    assert two.losses["env"] == pytest.approx(two.shares["env"] * 0.2)
    assert sum(two.losses.values()) == pytest.approx(1 - two.efficiency.median)
    assert "envs (env steps that take longer than in the base case), 1" in report.cause([two])


def test_points_with_more_ranks_than_cores_are_marked():
    analysis = Analysis(made_up(make_study("strong", RANKS), num_cores=8))
    assert [point.num_ranks for point in analysis.points if point.oversubscribed] == [16, 32]
    assert [point.num_ranks for point in analysis.uncrowded] == [1, 2, 4, 8]


# The report.


def test_the_report_has_a_line_for_each_number_of_ranks():
    text = "\n".join(report.lines(made_up(make_study("weak", (1, 2, 4), repeats=5), num_cores=2)))
    assert "weak scaling of Acrobot-v1, 64 envs per rank, 1,000 steps a job: node7 (Made-up 9000, 2 cores)" in text
    assert "base case: bare env.step loop over 64 envs, one rank: 30,000 (30,000 to 30,000) env steps/s" in text
    assert [line.split()[0] for line in text.splitlines()[3:7]] == ["ranks", "1", "2", "4*"]
    assert "94 % for env steps/s, 88 % for speed-up and efficiency" in text
    assert "* more ranks than cores" in text
    assert "what holds it back at 2 ranks (efficiency 0.9" in text


def test_a_machine_on_which_other_work_ran_is_told_of_unless_ranks_slept_while_they_waited():
    ranks = [rank | {"cpu_share": 0.55} for rank in outcome(2, 512, 1000)["ranks"]]
    files = [
        with_outcome(made_up(make_study()), **more) for more in ({}, {"ranks": ranks}, {"ranks": ranks, "slept": True})
    ]
    told = [report.disturbance([Analysis(each)]) for each in files]
    assert told[0] == told[2] == [] and "a rank had no more than 0.55 of a core" in told[1][0]
    assert files[2].samples[1].slept and report.notes([Analysis(files[1])])[-1:] == told[1]


def test_the_report_names_the_base_case_of_natively_vectorized_envs():
    study = make_study(vectorization_mode="vector_entry_point")
    assert study.base_case == "bare step loop over the env's own vectorized version of 512 envs, one rank"


def test_without_a_base_case_there_are_rates_but_no_speed_ups():
    file = made_up(make_study(num_ranks=(1, 2), repeats=1), failing=1)
    lines = report.lines(file)
    assert lines[1] == "no base case, so no speed-ups: no job of one rank gave a result"
    failed = "failed: -n 1 --fragment-length 1, repeat 0: exit code 70: no licence"
    assert lines[-1] == failed
    assert report.lines(made_up(make_study(num_ranks=(1,), repeats=1), failing=1))[-1] == failed


def test_in_a_batch_job_the_cores_are_those_of_the_node(monkeypatch):
    """What a job is allotted of them may be another number when it is started again."""
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    monkeypatch.setattr("os.sched_getaffinity", lambda _pid: {0})
    monkeypatch.setattr("os.cpu_count", lambda: 64)
    assert machine_facts()["num_cores"] == 1
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    assert machine_facts()["num_cores"] == 64


# Fragments.


def of_lengths(*lengths: str) -> StudyFile:
    """A study in which fragments take less time the longer they are."""
    return made_up(make_study("weak", (1, 2, 4, 8, 16), lengths=lengths))


def test_each_length_of_fragments_has_jobs_of_all_numbers_of_ranks():
    order = of_lengths("1", "16", "auto").study.order()
    assert len(set(order)) == len(order) == 2 * 3 * 5
    assert {point.length for point in order if point.num_ranks == 4} == {"1", "16", "auto"}


def test_a_study_of_several_lengths_has_a_table_for_each_and_one_base_case():
    file = of_lengths("1", "16", "auto")
    text = report.lines(file)
    assert ", fragments of 1, 16, auto: " in text[0] and text[1].endswith("(median of 6 jobs)")
    labels = ["lockstep:", "fragments of 16:", "fragments of 256 at most (auto):"]
    assert [line for line in text if line in labels] == 2 * labels
    efficiencies = [analysis.points[2].efficiency.median for analysis in analyses(file)]
    assert efficiencies == sorted(efficiencies) and efficiencies[0] < efficiencies[-1]


@pytest.mark.parametrize(
    ("text", "lengths"), [("auto", ("auto",)), ("64,1,auto,16", ("1", "16", "64", "auto")), ("8", ("8",))]
)
def test_lengths_are_read_in_ascending_order(text, lengths):
    assert lengths_list(text) == lengths


@pytest.mark.parametrize("text", ["", "0", "long", "1,,2", "auto2"])
def test_what_is_no_length_is_refused(text):
    with pytest.raises(UsageError, match="--fragment-length must be numbers of steps, or auto, such as 1,16,auto"):
        lengths_list(text)
