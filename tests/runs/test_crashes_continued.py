"""What a run that is packed or continued has acknowledged as committed survives a SIGKILL at its writes."""

from pathlib import Path

import pytest
from crashes import assert_all_committed_survives, assert_complete, crash


@pytest.mark.parametrize("kind", ["packed", "continued nested", "continued packed"])
def test_every_acknowledged_step_survives_a_kill_at_a_write(tmp_path: Path, kind: str):
    outcomes = crash(tmp_path, kind, "whole")
    assert_complete(outcomes)
    assert_all_committed_survives(outcomes)
