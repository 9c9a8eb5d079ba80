"""What a comparison is made of, what its samples show, and how it is told and drawn."""

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import gymnasium
import pytest
from jobs import job_environment
from made_up_comparisons import ENV, ENV_S, FACTS, SIZES, TIMES, made_up, make_comparison

from mpi_rollout.bench.compare import figures, report, runner
from mpi_rollout.bench.compare.analysis import Analysis, verdict
from mpi_rollout.bench.compare.comparison import (
    Comparison,
    ComparisonFile,
    Point,
    Samples,
    check_same_comparison,
    read_comparison,
)
from mpi_rollout.bench.compare.forms import envpool_id
from mpi_rollout.bench.compare.pythons import facts_now
from mpi_rollout.bench.compare.reasons import reason_to_skip
from mpi_rollout.bench.compare.runner import Probe
from mpi_rollout.bench.compare.systems import NAMES, systems_of
from mpi_rollout.bench.plan import STORED, JobOptions, as_stored
from mpi_rollout.bench.statistics import Interval, NoFit
from mpi_rollout.cli import main
from mpi_rollout.errors import DataError, UsageError

RANKS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
UPDATED = "2026-01-02T04:05:06+00:00"


@pytest.fixture
def file() -> ComparisonFile:
    return made_up(make_comparison())


@pytest.fixture
def analysis(file: ComparisonFile) -> Analysis:
    return Analysis(file.comparison, file.samples)


# What it is made of.


def test_each_repeat_of_each_point_has_all_systems_in_an_order_of_its_own_which_the_seed_decides():
    comparison = make_comparison()
    orders = [tuple(comparison.order(point, repeat)) for point in comparison.points for repeat in range(5)]
    assert {frozenset(order) for order in orders} == {frozenset(TIMES)} and len(set(orders)) > len(orders) // 2
    assert orders[7] == tuple(make_comparison().order(Point(ENV, 2), 2))
    assert orders[7] != tuple(make_comparison(order_seed=1).order(Point(ENV, 2), 2))


def test_the_bare_loop_is_always_measured():
    assert list(make_comparison(systems=("sync",)).all_systems) == ["bare", "sync"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"repeats": 0}, "--repeats must be at least 1, got 0"),
        ({"window_s": 0.0}, "--window-s must be more than 0 and finite, got 0"),
        ({"window_s": float("nan")}, "--window-s must be more than 0 and finite, got nan"),
        ({"window_s": float("inf")}, "--window-s must be more than 0 and finite, got inf"),
        ({"order_seed": -1}, "--order-seed must be at least 0, got -1"),
        ({"launcher": "srun 'x"}, '--launcher "srun \'x": No closing quotation'),
        ({"systems": ("sync", "ray")}, "--systems: there is no ray; there are bare,bare-all,mpi-1,mpi-2,"),
    ],
)
def test_what_no_comparison_can_be_is_refused(change, words):
    with pytest.raises(UsageError) as refusal:
        make_comparison(**change)
    assert words in str(refusal.value)


@pytest.mark.parametrize(
    ("name", "env", "num_envs", "reason"),
    [
        ("mpi-2", ENV, 1, "1 env for 2 ranks that step envs"),
        ("mpi-2", ENV, 2, ""),
        ("mpi-ready", ENV, 1, "1 env for 2 ranks that step envs"),
        ("mpi-groups", ENV, 3, "3 envs for 2 ranks that step envs, in 2 groups"),
        ("mpi-groups", ENV, 4, ""),
        ("mpi-native-1", "Acrobot-v1", 4, "the env has no vectorized version of its own"),
        ("native", "Acrobot-v1", 4, "the env has no vectorized version of its own"),
        ("mpi-native-2", ENV, 1, "1 env for 2 ranks that step envs"),
        ("native", ENV, 1, ""),
        ("pool", ENV, 1, "1 env for 2 processes"),
        ("bare-all", ENV, 1, "1 env for 2 processes"),
        ("async", ENV, 1, ""),
    ],
)
def test_what_does_not_apply_is_skipped_with_the_reason(name, env, num_envs, reason):
    assert reason_to_skip(systems_of((1, 2), 2)[name], env, num_envs, 2) == reason


def test_what_is_not_installed_is_skipped_with_what_to_install(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for name in ("sb3-dummy", "sb3-subproc", "envpool", "envpool-async", "minari"):
        told = reason_to_skip(systems_of((1,), 2)[name], ENV, 4, 2)
        assert "is not installed; pip install 'mpi_rollout[compare]'" in told


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ("CartPole-v1", "CartPole-v1"),
        ("ALE/Pong-v5", "Pong-v5"),
        ("ale_py:ALE/Pong-v5", "Pong-v5"),
        ("lab/Ant-v4", "lab/Ant-v4"),
        ("mine:lab/Ant-v4", "mine:lab/Ant-v4"),
        ("mine:Ant-v4", "mine:Ant-v4"),
    ],
)
def test_an_env_of_somebody_else_is_not_taken_for_one_of_envpool_of_the_same_name(monkeypatch, env, expected):
    monkeypatch.setattr(
        "mpi_rollout.bench.compare.reasons._envs_of_envpool", lambda: {"CartPole-v1", "Pong-v5", "Ant-v4"}
    )
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    assert envpool_id(env) == expected
    reason = reason_to_skip(systems_of((1,), 2)["envpool"], env, 4, 2)
    assert reason == ("" if expected in {"CartPole-v1", "Pong-v5"} else f"EnvPool has no {env}")


def test_the_estimate_grows_with_what_is_to_be_done():
    short = make_comparison()
    look = Probe(0.01, 1e-5, 1e-5)
    one = runner.point_s(short, 4, 10, look)
    assert 10 * 5 * 0.25 < one < 10 * 5 * 0.5  # Turns of 0.25 s, and little else.
    assert runner.point_s(short, 4, 20, look) == pytest.approx(2 * one)
    long_to_make = runner.point_s(short, 4, 10, look._replace(make_s=1.01))
    assert long_to_make - one == pytest.approx(10 * 4 * 1.0 / 2)  # 40 envs, on two cores.
    long_to_reset = runner.point_s(short, 4, 10, look._replace(reset_s=1.00001))
    assert long_to_reset - one == pytest.approx(10 * 5 * 4 * 1.0)
    slow = Probe(0.01, 1e-5, 1.0)  # A step of all envs takes longer than the window.
    assert runner.point_s(short, 4, 1, slow) > 5 * 2 * 4.0


def test_the_help_names_all_systems():
    names = set(systems_of((7,), 2))
    assert {name.replace("R", "7") for name in re.findall(r"[\w-]+", NAMES)} >= names


def test_the_versions_of_what_is_compared_are_facts_of_a_comparison():
    told = facts_now({})["versions"].split(", ")
    assert f"gymnasium {gymnasium.__version__}" in told
    assert re.fullmatch(r"(Open MPI|MPICH) .*\d.*|no MPI library", told[-1])
    stable_baselines3 = pytest.importorskip("stable_baselines3")
    assert f"stable_baselines3 {stable_baselines3.__version__}" in told


# What it shows.


def test_the_overhead_of_made_up_times_is_found_in_them(analysis: Analysis):
    for name in ("mpi-1", "sync", "native", "async", "mpi-2"):
        found = analysis.overhead(ENV, name)
        assert found.coefficients == pytest.approx(TIMES[name]), name
        assert found.worst_error < 1e-9 and abs(found.held_out_error) < 1e-9
    assert analysis.env_step_s(ENV) == pytest.approx(ENV_S)


def test_too_few_numbers_of_envs_carry_no_overhead():
    few = make_comparison(num_envs=(1, 2, 4, 8))
    found = Analysis(few, made_up(few).samples).overhead(ENV, "sync")
    assert isinstance(found, NoFit) and str(found) == "4 points, 5 are needed"


def test_ratios_are_over_the_bare_loop_of_the_same_point(analysis: Analysis):
    assert analysis.cells[Point(ENV, 4), "sync"].ratio.median == pytest.approx(4 * ENV_S / (4 * 1.2 * ENV_S + 1e-5))
    assert analysis.cells[Point(ENV, 64), "bare-all"].ratio.median == pytest.approx(2)
    assert analysis.cells[Point(ENV, 64), "bare"].rate.coverage == 0.9375


def test_a_bare_loop_that_failed_leaves_rates_without_ratios():
    file = made_up(make_comparison(), failing="bare")
    analysis = Analysis(file.comparison, file.samples)
    assert analysis.cells[Point(ENV, 4), "sync"].ratio is None and analysis.env_step_s(ENV) is None
    assert f"failed: bare loop, 1 core, {ENV}, 1 env: no licence" in report.lines(file)


def test_who_is_ahead_is_said_for_each_number_of_envs(analysis: Analysis):
    text = "\n".join(report.env_lines(analysis, ENV))
    assert "fastest with 1 env: Gymnasium SyncVectorEnv\n" in text
    both = "fastest with 64 envs: mpi_rollout, 2 ranks; of all: Gymnasium vector_entry_point\n"
    assert both in text
    # 1.2 N + 1 meets N + 3 at 10 envs and N / 2 + 5 at 6.
    sync = (
        "mpi_rollout beside Gymnasium SyncVectorEnv: faster from 8 envs on (2 ranks); slower with 1, 2, 4 envs (1 rank)"
    )
    assert sync in text.splitlines()
    everywhere = "faster at all sizes measured: 1, 2, 4, 8, 16, 64 envs (1 rank or 2 ranks)"
    assert f"mpi_rollout beside Gymnasium AsyncVectorEnv: {everywhere}" in text.splitlines()
    ahead = "mpi_rollout with actions known ahead beside Gymnasium SyncVectorEnv: faster at all sizes measured: "
    assert f"{ahead}2, 4, 8, 16, 64 envs (2 ranks, fragments)" in text.splitlines()
    native = "slower at all sizes measured: 1, 2, 4, 8, 16, 64 envs (1 rank, vector_entry_point)"
    assert f"mpi_rollout with vector_entry_point beside Gymnasium vector_entry_point: {native}" in text.splitlines()


def test_of_equal_systems_none_is_said_to_be_faster_though_the_best_of_several_ways_is_taken(monkeypatch):
    for name in ("mpi-1", "mpi-2", "sync"):
        monkeypatch.setitem(TIMES, name, (ENV_S, 1e-5))
    file = made_up(make_comparison(systems=("mpi-1", "mpi-2", "sync")), spread=0.2)
    analysis = Analysis(file.comparison, file.samples)
    standings = analysis.standings(ENV, "sync")
    best = [
        analysis.rate(ENV, each.num_envs, each.way) > analysis.rate(ENV, each.num_envs, "sync") for each in standings
    ]
    assert sum(best) > len(SIZES) / 2, "the medians do not show what is to be guarded against"
    assert [each.verdict for each in standings] == ["not told apart"] * len(SIZES)
    assert "beside Gymnasium SyncVectorEnv: not told apart at all sizes measured" in report.crossovers(analysis, ENV)[0]


@pytest.mark.parametrize(
    ("ours", "other", "expected"),
    [
        ((5, 4, 6), (3, 2, 3.9), "faster"),
        ((3, 2, 3.9), (5, 4, 6), "slower"),
        ((5, 4, 6), (3, 2, 4), "not told apart"),
        ((5, 4, 6), (8, 6, 9), "not told apart"),
    ],
)
def test_who_is_faster_is_told_only_where_intervals_are_apart(ours, other, expected):
    assert verdict(Interval(*ours, 0.9), Interval(*other, 0.9)) == expected
    assert verdict(Interval(*ours, 0.0), Interval(*other, 0.9)) == "not told apart"  # Of a single turn.


def test_systems_whose_intervals_meet_are_both_named():
    file = made_up(make_comparison(systems=("mpi-1", "sync")), spread=0.9)
    analysis = Analysis(file.comparison, file.samples)
    assert " or " in "\n".join(report.fastest(analysis, ENV))


def test_of_many_systems_whose_intervals_meet_three_are_named(monkeypatch):
    file = made_up(make_comparison())
    analysis = Analysis(file.comparison, file.samples)
    monkeypatch.setattr(analysis, "fastest", lambda *_: ["sync", "async", "mpi-1", "mpi-2", "native"])
    titles = "Gymnasium SyncVectorEnv or Gymnasium AsyncVectorEnv or mpi_rollout, 1 rank or 2 more"
    assert report.fastest(analysis, ENV)[0] == f"fastest with 1 env: {titles}"


@pytest.mark.parametrize(
    ("found", "words"),
    [
        ([1, 2, 4], "at all sizes measured: 1, 2, 4 envs"),
        ([2, 4], "from 2 envs on"),
        ([4], "with 4 envs"),
        ([1], "with 1 env"),
        ([1, 4], "with 1, 4 envs"),
    ],
)
def test_where_one_is_ahead_of_the_other_is_told_in_words(found, words):
    assert report.where([1, 2, 4], found) == words
    assert report.where([4], [4]) == "with 4 envs"


def test_the_report_tells_machine_versions_rates_resets_skips_and_failures():
    file = made_up(make_comparison(), failing="async")
    text = "\n".join(report.lines(file))
    assert "5 turns of 0.25 s each: node7 (Made-up 9000, 2 cores), 2026-01-02" in text
    assert "with mpi_rollout 0.1.0" in text
    assert re.search(r"^Gymnasium SyncVectorEnv +45,455 ±0% +58,824 ±0%", text, re.M)  # 1 / 22 us, 2 / 34 us.
    assert re.search(r"^mpi_rollout, 1 rank +30\.0 +10\.000 +1\.000 +0% +[+-]0% +0\.19 \(64\) +3\.0$", text, re.M)
    assert "skipped: bare loops, 2 cores at once with 1 env (CartPole-v1): 1 env for 2 processes" in text
    assert text.count("failed: Gymnasium AsyncVectorEnv, CartPole-v1, ") == len(SIZES) and "for anybody" not in text


def test_a_machine_on_which_other_work_ran_is_told_of(monkeypatch):
    quiet = made_up(make_comparison())
    assert not any("other work" in line for line in report.lines(quiet))
    monkeypatch.setitem(TIMES, "bare-all", (ENV_S / 1.2, 0.0))
    disturbed = report.lines(made_up(make_comparison()))
    assert any("2 bare loops at once went at 0.60 of 2 times the speed of one at worst" in line for line in disturbed)


# The file.


def test_what_is_read_is_what_was_written(tmp_path: Path):
    file = made_up(make_comparison(), 0.1, failing="sync")
    file.write(str(tmp_path / "compare.h5"), UPDATED)
    assert read_comparison(str(tmp_path / "compare.h5")) == file


def test_a_comparison_before_its_first_turn_can_be_written_and_read(tmp_path: Path, file: ComparisonFile):
    empty = replace(file, samples=Samples())
    empty.write(str(tmp_path / "compare.h5"), UPDATED)
    assert read_comparison(str(tmp_path / "compare.h5")) == empty


def test_a_failed_turn_is_not_taken_again_and_one_that_was_taken_neither():
    samples = made_up(make_comparison(repeats=2), failing="sync").samples
    point = Point(ENV, 4)
    assert samples.is_done(point, "sync", 1) and samples.is_done(point, "mpi-1", 1)
    assert not samples.is_done(point, "mpi-1", 2) and not samples.is_done(Point("Acrobot-v1", 4), "sync", 0)


def test_what_differs_is_said_in_the_words_of_the_command_line(file: ComparisonFile):
    check_same_comparison("compare.h5", file, make_comparison(), FACTS)
    with pytest.raises(UsageError) as refusal:
        now = make_comparison(num_envs=(1, 2), window_s=0.5)
        check_same_comparison("compare.h5", file, now, FACTS | {"versions": "mpi_rollout 0.2.0"})
    assert str(refusal.value) == (
        "--out compare.h5: it is of another comparison: --num-envs was 1,2,4,8,16,64, is 1,2; --window-s was 0.25, is "
        "0.5; versions was mpi_rollout 0.1.0, is mpi_rollout 0.2.0; give the same to continue it, or use another --out"
    )


def test_other_files_are_refused_with_what_they_are(tmp_path: Path, file: ComparisonFile, monkeypatch):
    path = str(tmp_path / "compare.h5")
    monkeypatch.setattr("mpi_rollout.bench.compare.comparison.FORMAT_VERSION", 2)
    file.write(path, UPDATED)
    monkeypatch.undo()
    with pytest.raises(DataError, match="has format version 2, this program knows 1"):
        read_comparison(path)
    monkeypatch.setattr("mpi_rollout.bench.compare.comparison.FORMAT", "mpi_rollout-scaling")
    file.write(path, UPDATED)
    monkeypatch.undo()
    with pytest.raises(DataError, match="is no comparison of mpi_rollout, but of format 'mpi_rollout-scaling'"):
        read_comparison(path)
    with pytest.raises(DataError, match="no such file"):
        read_comparison(str(tmp_path / "none.h5"))
    (tmp_path / "text.h5").write_text("not HDF5")
    with pytest.raises(DataError, match="is not a readable HDF5 file"):
        read_comparison(str(tmp_path / "text.h5"))


# The picture.


def texts_in(path: Path) -> str:
    return " ".join(" ".join(re.findall(r"<!-- (.*?) -->", path.read_text(), re.DOTALL)).split())


def test_plot_draws_pictures_with_machine_and_date(tmp_path: Path, file: ComparisonFile, capsys):
    file.write(str(tmp_path / "compare.h5"), UPDATED)
    assert main(["plot", str(tmp_path / "compare.h5")]) == 0
    names = [f"compare{part}{kind}" for part in ("", "-systems", "-loop", "-bars") for kind in (".png", ".svg")]
    assert capsys.readouterr().out.splitlines() == [str(tmp_path / name) for name in names]
    assert (tmp_path / "compare.png").read_bytes().startswith(b"\x89PNG")
    texts = {name: texts_in(tmp_path / name) for name in names[1::2]}
    for words in ("Made-up 9000, 2 cores", "2026-01-02", ENV):
        assert all(words in text for text in texts.values())
    for words in ("1 rank", "2 ranks", "SyncVectorEnv", "AsyncVectorEnv", "vector_entry_point", "mpi_rollout, 1 rank"):
        assert words in texts["compare-systems.svg"]
    assert "SyncVectorEnv, with 64 envs" in texts["compare-bars.svg"]


def test_each_system_beside_the_bare_loops_is_in_one_group_of_the_pictures():
    for system in systems_of(RANKS, 64).values():
        groups = [title for title, is_in in figures.GROUPS.items() if is_in(system)]
        assert len(groups) == (system.kind != "base"), system.name


def test_no_two_systems_of_a_panel_look_the_same():
    systems = systems_of(RANKS, 64).values()
    for is_in in figures.GROUPS.values():
        looks = [tuple(sorted(look.items())) for look in figures.looks_of([*filter(is_in, systems)]).values()]
        assert len(looks) > 2 and len(set(looks)) == len(looks)
    families = [(look["color"], look["marker"], look["linestyle"]) for look in figures.LOOKS.values()]
    assert len(families) <= 6 + len([figures.AHEAD]) and all(map(len, map(set, zip(*families[:4], strict=True))))
    assert len({color for color, _, _ in families}) == len({marker for _, marker, _ in families}) == len(families)


def test_a_line_is_the_fastest_of_its_family_with_so_many_envs(analysis: Analysis):
    families = figures.families(analysis, ENV)
    ours = {"mpi_rollout": ["mpi-1", "mpi-2"], "ahead": ["mpi-fragments-2"]}
    assert families == ours | {"one": ["sync"], "each": ["async"], "native": ["native"]}
    cells = figures.best(analysis, ENV, families["mpi_rollout"])
    assert [*cells] == [*SIZES]
    assert cells[1] is analysis.cells[Point(ENV, 1), "mpi-1"]  # With one env there is no other.
    assert cells[2] is analysis.cells[Point(ENV, 2), "mpi-1"] and cells[64] is analysis.cells[Point(ENV, 64), "mpi-2"]


def test_bars_are_as_long_as_the_ratio_to_sync_vector_env(file: ComparisonFile, analysis: Analysis):
    axes = figures._bars(file, analysis, [ENV], 64).axes[0]
    names = [label.get_text() for label in axes.get_yticklabels()]
    ours = ["mpi_rollout, step by step", "mpi_rollout, fragments"]
    assert names == [*ours, "SyncVectorEnv", "AsyncVectorEnv", "vector_entry_point (env in NumPy)"]
    sync = analysis.rate(ENV, 64, "sync")
    expected = [analysis.rate(ENV, 64, name) / sync for name in ("mpi-2", "mpi-fragments-2", "sync", "async", "native")]
    assert [bar.get_width() for bar in axes.patches] == pytest.approx(expected)


def test_a_comparison_without_a_result_has_no_picture(tmp_path: Path, file: ComparisonFile, capsys):
    replace(file, samples=Samples()).write(str(tmp_path / "compare.h5"), UPDATED)
    assert main(["plot", str(tmp_path / "compare.h5")]) == 65
    assert "has no result yet; there is nothing to draw" in capsys.readouterr().err


# The command line.


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--env", ""), "--env must be env ids"),
        (("--env", "Nowhere-v0"), "--env Nowhere-v0: Environment `Nowhere` doesn't exist"),
        (
            ("--env", "registered_envs:FailingAtOnce-v0"),
            "--env registered_envs:FailingAtOnce-v0: RuntimeError: the simulator",
        ),
        (("--num-envs", "0,1"), "--num-envs must be numbers of envs such as 1,16,64, got '0,1'"),
        (("--ranks", "two"), "--ranks must be numbers of ranks such as 1,2,4, got 'two'"),
        (("--systems", "gym"), "--systems: there is no gym; there are bare,"),
        (("--systems", " ,"), "--systems must be names such as mpi-1,sync, got ' ,'; leave it out for all"),
        (("--timeout-s", "0"), "--timeout-s must be more than 0 and finite, got 0"),
        (("--timeout-s", "nan"), "--timeout-s must be more than 0 and finite, got nan"),
        (("--timeout-s", "inf"), "--timeout-s must be more than 0 and finite, got inf"),
        (("--systems", "mpi-1", "--launcher", "nowhere"), "--launcher: there is no program nowhere"),
    ],
)
def test_wrong_options_are_refused_before_anything_is_measured(tmp_path: Path, monkeypatch, arguments, words, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["compare", *arguments, "--out", "compare.h5"]) in (64, 70, 78)
    assert words in capsys.readouterr().err and not list(tmp_path.iterdir())


def test_a_dry_run_tells_what_would_be_measured_and_skipped_and_how_long_it_takes(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    arguments = ("--env", "CartPole-v1,registered_envs:Counting-v0", "--num-envs", "1,4", "--systems", "sync,mpi-2")
    assert main(["compare", *arguments, "--ranks", "2", "--dry-run"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["CartPole-v1, 1 env: bare, sync", "CartPole-v1, 4 envs: bare, mpi-2, sync"]
    assert lines[-2] == "skipped: mpi-2: 1 env for 2 ranks that step envs"
    assert re.fullmatch(r"5 turns of 0.25 s each; about \d+ min \d+ s in all", lines[-1])
    assert not list(tmp_path.iterdir())


def test_telling_what_compare_can_do_loads_no_mpi_and_none_of_the_systems():
    code = (
        "import sys\nfrom mpi_rollout.cli import main\n"
        "try: main(['compare', '--help'])\nexcept SystemExit: pass\n"
        "print(sorted({name.partition('.')[0] for name in sys.modules} & {'mpi4py', 'h5py', 'torch', 'envpool'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], env=job_environment(), capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_a_comparison_is_the_same_when_it_is_made_of_what_was_stored():
    comparison = make_comparison()
    stored = as_stored(comparison)
    assert stored["repeats"] == comparison.jobs.repeats and "jobs" not in stored
    jobs = JobOptions(**{name: stored.pop(name) for name in STORED})
    assert Comparison(**stored, jobs=jobs) == comparison
