"""What is so in the envs of many ranks is said once."""

import pytest

from mpi_rollout.errors import Option, as_argument
from mpi_rollout.process.notices import Notices

TEXT = "it is cast; ", Option("env_checks", "dtypes"), " refuses it"


def test_a_notice_of_many_ranks_is_one_line_with_the_first_envs_and_the_number_of_the_other_ranks(
    capfd: pytest.CaptureFixture[str],
):
    root, others = Notices(), [Notices(), Notices(), Notices()]
    for place, notices in enumerate([root, *others]):
        notices.hold()
        for env in range(2):
            notices.note(f"env {4 * place + env}", *TEXT)
    others[2].note("env 13", "it is another thing")
    assert capfd.readouterr().err == ""
    for _ in range(2):  # At the start and at the end.
        root.hear([notices.held for notices in (root, *others)], as_argument)
    assert capfd.readouterr().err.splitlines() == [
        "mpi_rollout: env 0: it is cast; env_checks=dtypes refuses it; the same on 3 other ranks",
        "mpi_rollout: env 13: it is another thing",
    ]


def test_later_notices_of_rank_0_are_said_at_once_and_once(capfd: pytest.CaptureFixture[str]):
    notices = Notices()
    notices.hold()
    notices.hear([{}], as_argument)
    for env in range(3):
        notices.note(f"env {env}", *TEXT)
    assert capfd.readouterr().err == "mpi_rollout: env 0: it is cast; env_checks=dtypes refuses it\n"
