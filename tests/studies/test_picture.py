"""`plot` draws studies beside their files, and says what it cannot draw."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from fake_launcher import outcome
from jobs import job_environment
from made_up_studies import made_up, make_study, with_outcome

from mpi_rollout.cli import main
from mpi_rollout.commands.style import BLUE
from mpi_rollout.studies import picture
from mpi_rollout.studies.report import Analysis
from mpi_rollout.studies.study import PHASES
from mpi_rollout.studies.study_file import StudyFile
from mpi_rollout.text import pip_install

RANKS = (1, 2, 4, 8, 16, 32)


def drawn(folder: Path, file: StudyFile, capsys: pytest.CaptureFixture) -> str:
    """Draw a study; return the texts in its SVG."""
    file.write(str(folder / "study.json"), "")
    assert main(["plot", str(folder / "study.json")]) == 0
    assert capsys.readouterr().out.splitlines() == [str(folder / "study.png"), str(folder / "study.svg")]
    assert (folder / "study.png").read_bytes().startswith(b"\x89PNG")
    return " ".join(" ".join(re.findall(r"<!-- (.*?) -->", (folder / "study.svg").read_text(), re.DOTALL)).split())


def test_a_study_is_drawn_with_machine_date_base_case(tmp_path: Path, capsys):
    texts = drawn(tmp_path, made_up(make_study("strong", RANKS, 5), spread=0.02), capsys)
    labels = ("ideal", "88 % interval", "bare loops on all ranks at once")
    for words in ("Made-up 9000, 64 cores", "2026-01-02", "1 = bare env.step loop over", *labels):
        assert words in texts
    assert re.search(r"32 ranks make [\d.]+ times as many env steps as one bare loop: strong scaling of Acrobot", texts)
    assert "more ranks than cores" not in texts


def test_points_with_more_ranks_than_cores_are_drawn_apart(tmp_path: Path, capsys):
    texts = drawn(tmp_path, made_up(make_study("weak", (*RANKS, 64)), num_cores=32), capsys)
    assert "more ranks than cores" in texts and "64*" in texts


def test_a_study_of_several_lengths_of_fragments_has_a_line_for_each(tmp_path: Path, capsys):
    study = make_study("weak", RANKS, lengths=("1", "16", "auto"))
    texts = drawn(tmp_path, made_up(study), capsys)
    for words in ("lockstep", "fragments of 16", "fragments of 256 at most (auto)", "fragment length, on 32 ranks"):
        assert words in texts


def test_other_work_on_the_machine_is_told_and_what_few_samples_show_is_no_interval(tmp_path: Path, capsys):
    ranks = [rank | {"cpu_share": 0.5} for rank in outcome(2, 8, 8)["ranks"]]
    texts = drawn(tmp_path, with_outcome(made_up(make_study(repeats=1)), ranks=ranks), capsys)
    assert "no more than 0.50 of a core" in texts and "median, range" in texts
    assert "interval" not in texts


def test_the_points_are_where_the_samples_are():
    """Medians as markers, intervals as bars, oversubscribed ones open."""
    from matplotlib.figure import Figure

    study = make_study(num_ranks=(1, 2, 4))
    analysis = Analysis(made_up(study, num_cores=2, spread=0.1))
    axes = Figure().subplots()
    picture._plot_efficiencies(axes, [analysis], analysis.base.median)
    markers = {tuple(line.get_xdata()): line for line in axes.lines if line.get_marker() == "o"}
    assert {ranks: line.get_markerfacecolor() for ranks, line in markers.items()} == {(1, 2, 4): BLUE, (4,): "w"}
    assert list(markers[1, 2, 4].get_ydata()) == [point.efficiency.median for point in analysis.points]
    bars = [segment for each in axes.collections for segment in each.get_segments()]
    expected = [(point.efficiency.low, point.efficiency.high) for point in analysis.points]
    assert [tuple(segment[:, 1]) for segment in bars] == [pytest.approx(each) for each in expected]
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["1", "2", "4"]


def test_a_doubled_speed_up_is_a_line_of_the_grid():
    from matplotlib.figure import Figure

    analysis = Analysis(made_up(make_study("strong", RANKS, 5)))
    axes = Figure().subplots()
    picture._plot_speed_ups(axes, [analysis], analysis.base.median)
    assert {1, 2, 4, 8, 16, 32} <= set(axes.get_yticks())


def test_phases_are_stacked_to_the_whole_run_time():
    from matplotlib.figure import Figure

    study = make_study(num_ranks=(1, 4))
    axes = Figure().subplots()
    picture._plot_phases(axes, Analysis(made_up(study)).points)
    assert [bars.get_label() for bars in axes.containers] == [*PHASES.values()]
    tops = [bar.get_y() + bar.get_height() for bar in axes.containers[-1]]
    assert tops == pytest.approx([100, 100])


def test_a_study_without_a_base_case_is_drawn_without_speed_ups(tmp_path: Path, capsys):
    texts = drawn(tmp_path, made_up(make_study(num_ranks=(1, 2)), failing=1), capsys)
    assert "no base case" in texts and "% of the run time" in texts


def test_what_cannot_be_drawn_is_refused(tmp_path: Path, capsys):
    made_up(make_study(num_ranks=(1,)), failing=1).write(str(tmp_path / "failed.json"), "")
    (tmp_path / "folder").mkdir()
    for name, words in (
        ("failed.json", "failed.json has no result yet"),
        ("none.json", "none.json: no such file"),
        ("folder", "folder is a folder; name a file in it"),
    ):
        assert main(["plot", str(tmp_path / name)]) == 65
        assert words in capsys.readouterr().err


def test_without_matplotlib_the_extra_to_install_is_named(tmp_path: Path):
    made_up(make_study()).write(str(tmp_path / "study.json"), "")
    (tmp_path / "matplotlib.py").write_text("raise ImportError")
    environment = job_environment()
    environment["PYTHONPATH"] = f"{tmp_path}:{environment['PYTHONPATH']}"
    command = [sys.executable, "-m", "mpi_rollout", "plot", str(tmp_path / "study.json")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 64
    assert done.stderr == f"mpi_rollout: plot needs matplotlib; {pip_install('[plots]')}\n"
