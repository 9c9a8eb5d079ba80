"""What a run has acknowledged as committed survives a SIGKILL at any of its writes."""

from pathlib import Path

from crashes import assert_all_committed_survives, assert_complete, crash


def test_every_acknowledged_step_survives_a_kill_at_any_write(tmp_path: Path):
    outcomes = crash(tmp_path, "nested", "whole")
    assert_complete(outcomes)
    assert_all_committed_survives(outcomes)
