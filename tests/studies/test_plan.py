"""The options of jobs, and what a study needs before it starts one."""

import importlib.util

import pytest
from jobs import Job

from mpi_rollout.errors import UsageError
from mpi_rollout.studies.plan import JobOptions, check_packages, numbers


def test_a_study_without_its_packages_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    check_packages()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"^studies need scipy and psutil; pip install 'mpi_rollout\[studies\]'$"):
        check_packages()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"repeats": 0}, "--repeats must be at least 1, got 0"),
        ({"order_seed": -1}, "--order-seed must be at least 0, got -1"),
        ({"timeout_s": 0.0}, "--timeout-s must be more than 0 and finite, got 0"),
        ({"launcher": "srun 'x"}, '--launcher "srun \'x": No closing quotation'),
    ],
)
def test_job_options_that_cannot_be_are_refused(options, words):
    with pytest.raises(UsageError) as refusal:
        JobOptions(**options)
    assert str(refusal.value) == words


def test_a_list_of_numbers_is_ascending_and_each_is_in_it_once():
    assert numbers("--ranks", "numbers of ranks", "1,2", "4,1,4,2") == (1, 2, 4)
    for text, words in (("1,x", "such as 1,2, got '1,x'"), ("0,1", "such as 1,2, got '0,1'"), ("2147483648", "up to")):
        with pytest.raises(UsageError, match=f"^--ranks must be numbers of ranks {words}"):
            numbers("--ranks", "numbers of ranks", "1,2", text)


@pytest.mark.full_start
@pytest.mark.parametrize("command", [["--help"], ["scaling", "strong", "--help"], ["tune", "--help"]])
def test_reading_a_command_line_loads_no_scipy(job: Job, command: list[str]):
    code = (
        "import sys\nfrom mpi_rollout.cli import main\n"
        f"try: main({command!r})\nexcept SystemExit: pass\n"
        "print(sorted({name.partition('.')[0] for name in sys.modules} & {'scipy', 'psutil', 'h5py', 'matplotlib'}))"
    )
    done = job.script(None, code)
    assert done.out.splitlines()[-1] == "[]"
