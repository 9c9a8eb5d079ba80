"""The writes at the end of a run may fail, one or all from there on: that is told in one line, and loses nothing."""

import re
from pathlib import Path

import pytest
from crashes import crash, num_recovered


@pytest.mark.parametrize(("how", "words"), [("full", "No space left on device"), ("broken", "Input/output error")])
def test_a_write_that_fails_at_the_end_ends_the_run_in_one_line_whichever_it_is(tmp_path: Path, how: str, words: str):
    """Also where HDF5 would forget the error and crash later: nothing is on stderr, and the exit code is 74."""
    *failed, last = crash(tmp_path, "nested", how)
    assert last["code"] == 0 and len(failed) > 7
    for each in failed:
        assert each["code"] == 74, each
        assert re.match(rf"failed cannot write \S*/run\.h5\.part: {words} \(", each["ended"]), each
        assert num_recovered(each) >= each["committed"], each


def test_a_write_that_fails_when_a_run_is_continued_loses_nothing(tmp_path: Path):
    *failed, last = crash(tmp_path, "continued nested", "full")
    assert last["code"] == 0 and len(failed) > 10
    for each in failed:
        assert each["code"] == 74 and each["ended"].startswith("failed cannot write"), each
        assert num_recovered(each) >= each["committed"] >= 3, each
