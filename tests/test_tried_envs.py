"""The page of environments that were tried is what its program writes; the program's parts do without a network."""

import sys
from dataclasses import asdict

import pytest
from jobs import CLONE, Job

sys.path.append(str(CLONE / "tools"))

import env_factories
import try_envs
from env_packages import FACTORIES, PACKAGES, of_id
from try_envs import FAILS, WORKS, Trial


def test_the_page_has_the_table_that_follows_from_the_stored_results(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(try_envs.PAGE.read_text())
    try_envs.write_page(try_envs.read_results(), page)
    assert page.read_text() == try_envs.PAGE.read_text(), "python tools/try_envs.py --page"


def test_at_least_twenty_packages_were_tried_and_work():
    trials = try_envs.read_results()["trials"]
    assert trials.keys() <= {package.called for package in PACKAGES}
    assert sum(trial["state"] == WORKS for trial in trials.values()) >= 20


def test_stored_results_are_of_the_options_that_packages_have_now():
    trials = try_envs.read_results()["trials"]
    options = {package.called: list(package.options) for package in PACKAGES if package.called in trials}
    assert {name: trial["options"] for name, trial in trials.items()} == options


def test_each_package_has_a_name_of_its_own_and_each_factory_is_there():
    names = [package.called for package in PACKAGES]
    assert sorted(names) == sorted(set(names))
    given = [option for package in PACKAGES for option in package.options if option.startswith(FACTORIES)]
    assert given and all(callable(getattr(env_factories, option.partition(":")[2])) for option in given)


def test_rows_say_what_does_not_come_again_and_failures_say_why():
    good, bad = of_id("good", "Good-v0", "needs | care"), of_id("bad", "Bad-v0")
    of_good = Trial(
        "good", ["--env", "Good-v0"], {"GL": "off"}, version="1.2", state=WORKS, seed_check="reset twice ..."
    )
    of_bad = Trial("bad", ["--env", "Bad-v0"], state=FAILS, message="no <licence> | here")
    results = {"trials": {"good": asdict(of_good), "bad": asdict(of_bad)}}
    table = try_envs.table_of(results, [good, bad])
    notes = "needs \\| care; episodes do not come again from their seeds; the run says so at its start"
    assert f"| good 1.2 | `GL=off --env Good-v0` | no | {notes} |\n" in table
    assert table.endswith("| bad | `--env Bad-v0` | no &lt;licence> \\| here |\n")


@pytest.mark.parametrize(
    ("text", "line"),
    [("a\nmpi_rollout: no\nb\n", "mpi_rollout: no"), ("a\n\nb\n\n", "b"), ("", "no message")],
)
def test_of_what_a_program_says_the_last_line_of_ours_counts(text: str, line: str):
    assert try_envs.last_line(text, "mpi_rollout:") == line


def test_files_are_compared_by_what_envs_gave(job: Job):
    options = ("--env", "CartPole-v1", "--num-envs", "2", "--num-steps", "20")
    first, second, other = (
        try_envs.columns(job.collect(None, *options, "--seed", seed, out=f"{name}.h5"))
        for name, seed in (("first", "1"), ("second", "1"), ("other", "2"))
    )
    assert first == second != other and {"observations", "rewards", "episodes"} <= first.keys()


def test_results_are_kept_as_sorted_json(tmp_path):
    path = tmp_path / "results.json"
    assert try_envs.read_results(path)["trials"] == {}
    results = {"machine": "mine", "trials": {"b": {}, "a": {}}}
    try_envs.store(results, path)
    assert try_envs.read_results(path) == results
    assert path.read_text().index('"a"') < path.read_text().index('"b"')
